"""Locks of a relay, from the side of who holds them."""
