"""The accept path of the relay."""
