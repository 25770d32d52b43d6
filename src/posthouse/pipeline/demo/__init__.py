"""A made-up history, written by the real product."""
