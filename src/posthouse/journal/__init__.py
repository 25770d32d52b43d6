"""The journal: every fact of a store in commit order, with one schema for all readers."""
