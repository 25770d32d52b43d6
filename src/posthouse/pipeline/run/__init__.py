"""Bringing the lake up to date: bronze from the sources, then every declared table."""
