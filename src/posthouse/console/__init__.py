"""The console: pages for people who supervise agents, served on loopback with the rights of the user's key."""
