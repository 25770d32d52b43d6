"""docs/reference, written from the registries of the code; `make docs` writes it, a test compares it."""
