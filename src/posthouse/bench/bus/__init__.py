"""How fast the bus is, next to the bare file steps it cannot avoid."""
