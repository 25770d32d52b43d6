"""The tools, in the order in which they are listed."""
