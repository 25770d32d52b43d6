"""Which web pages may open a Pinch connection, by the Origin header that browsers send.

A list of patterns separated by commas: a host, or a whole origin, with `*` for any characters. Whoever sends no Origin
is no browser and always allowed; without a list everybody is, because a connection proves its key anyway.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from posthouse.model.errors import error

_PATTERN = re.compile(r"([a-z][a-z0-9+.-]*://)?[A-Za-z0-9*.:\[\]_-]+", re.IGNORECASE)


@dataclass(frozen=True)
class Origins:
    """The patterns of a list; none allows everybody."""

    patterns: Sequence[str] = ()

    def allow(self, origin: str | None) -> bool:
        """Tell whether a page of this origin may connect."""
        if origin is None or not self.patterns:
            return True
        whole = origin.lower()
        return any(fnmatchcase(whole if "://" in each else _host(whole), each) for each in self.patterns)


ANY_ORIGIN = Origins()


def parse_origins(text: str) -> Origins:
    """Return the list in a text, or raise pinch_origins_invalid."""
    patterns = [part.strip().lower() for part in text.split(",")]
    for pattern in patterns:
        if _PATTERN.fullmatch(pattern) is None:
            raise error("pinch_origins_invalid", reason=f"{pattern!r} is neither an origin nor a host")
    return Origins(tuple(patterns))


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
