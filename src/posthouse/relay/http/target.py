"""Request targets, decoded strictly: each segment and each parameter is exactly the text that was encoded.

Segments are split before they are decoded, so an encoded slash is part of a value. Nothing is normalised: dots, empty
segments and doubled slashes stay what they are, and what is not the percent-encoding of UTF-8 is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from posthouse.model.errors import error

_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_FORBIDDEN = re.compile(r"[^\x21-\x7e]|[#]")


@dataclass(frozen=True, slots=True)
class Target:
    """The decoded parts of a request target."""

    segments: tuple[str, ...]
    query: tuple[tuple[str, str], ...]


def parse_target(text: str) -> Target:
    """Return the parts of a target, or raise path_invalid."""
    if _FORBIDDEN.search(text) is not None:
        raise error("path_invalid", reason="it holds a character that must be percent-encoded")
    if not text.startswith("/"):
        origin = _ORIGIN.match(text)
        text = text[origin.end() :] if origin else text
    path, _, query = text.partition("?")
    if not path.startswith("/"):
        raise error("path_invalid", reason="it does not begin with a slash")
    segments = tuple(_decode(segment) for segment in path[1:].split("/"))
    return Target(segments, tuple(_parameter(part) for part in query.split("&") if part))


def _parameter(part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    return _decode(name.replace("+", " ")), _decode(value.replace("+", " "))


def _decode(text: str) -> str:
    if "%" not in text:
        return text
    if _BAD_PERCENT.search(text) is not None:
        raise error("path_invalid", reason="a percent sign is not followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError as fault:
        raise error("path_invalid", reason="its percent-encoding is not UTF-8") from fault
