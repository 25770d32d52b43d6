"""Pure values and rules: no I/O, no clock reading (but for the Clock itself), no threads."""
