"""Streamable HTTP on loopback, for agents that do not start the server themselves."""
