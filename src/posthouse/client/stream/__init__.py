"""The stream of a client: one lasting link, what is published over it, and what is subscribed to."""
