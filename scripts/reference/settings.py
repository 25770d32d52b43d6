"""The page of settings, from posthouse.model.settings."""

from __future__ import annotations


def render() -> str | None:
    """Return the body of the page."""
    return None
