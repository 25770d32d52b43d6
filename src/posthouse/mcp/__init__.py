"""Agents as users: the Model Context Protocol on the host daemon."""
