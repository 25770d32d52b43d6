"""Locks of a relay, for the nodes that hold them."""
