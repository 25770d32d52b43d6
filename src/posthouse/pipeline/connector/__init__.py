"""Connector."""
