"""Tables of figures per hour or day."""
