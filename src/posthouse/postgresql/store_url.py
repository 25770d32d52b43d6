"""URLs of databases: recognizing them, showing them in logs, and the driver they need. Loads no driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from posthouse.extras import install_hint
from posthouse.model.errors import error

_SCHEMES = ("postgresql://", "postgres://")


def is_store_url(text: str) -> bool:
    """Return True if a text names a database rather than a file."""
    return text.startswith(_SCHEMES)


def validate_store_url(text: str) -> str:
    """Return the URL of a database unchanged, or raise store_url_invalid."""
    if not is_store_url(text):
        raise error("store_url_invalid", reason="it does not begin with postgresql://")
    return text


def shown_url(url: str) -> str:
    """Return the URL without user, password and parameters, for logs and errors."""
    scheme, _, rest = url.partition("://")  # urlsplit refuses several hosts if one has brackets
    place = rest.partition("?")[0].partition("#")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"


@contextmanager
def driver_required() -> Iterator[None]:
    """Explain that the driver of PostgreSQL, an extra, is not installed."""
    try:
        yield
    except ImportError as failure:
        raise error("store_driver_missing", hint=install_hint("postgresql"), reason=str(failure)) from failure
