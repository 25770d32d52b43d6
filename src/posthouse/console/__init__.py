"""The console: pages for people who watch over agents, served on loopback with the rights of the user's key."""
