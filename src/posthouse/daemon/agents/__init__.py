"""The agents of a host."""
