"""A run: copies the sources to bronze, then derives every declared table."""
