"""The relay's HTTP API: its server, and the routes of each area in one module."""
