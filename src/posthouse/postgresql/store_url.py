"""URLs of databases: which text names one, and how logs show it. Loads no driver, so that settings can be checked."""

from __future__ import annotations

from urllib.parse import urlsplit

from posthouse.model.errors import error

_SCHEMES = ("postgresql://", "postgres://")


def validate_store_url(text: str) -> str:
    """Return the URL of a database unchanged, or raise store_url_invalid."""
    if not text.startswith(_SCHEMES):
        raise error("store_url_invalid", reason="it does not begin with postgresql://")
    return text


def shown_url(url: str) -> str:
    """Return the URL without user, password and parameters, for logs and errors."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
