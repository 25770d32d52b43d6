"""Canonical JSON by RFC 8785 (JCS), with the strictness that makes it a one-to-one form.

The value a canonical text was made from is read back equal; a value that has no such text is refused: NaN,
infinities, lone surrogates, integers beyond 2^53-1 (also written as floats) and keys that are not strings.
"""

from __future__ import annotations

from typing import Any

import rfc8785

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SAFE_INTEGER_MAX
from posthouse.model.strict_json import parse_json

_FIRST_EXPONENT_FORM = 1e21  # from here on JCS writes an exponent, so the text cannot be taken for an integer


def jcs(value: Any) -> str:
    """Return the canonical text of a JSON value, or raise not_canonical."""
    _refuse_large_floats(value)
    try:
        return rfc8785.dumps(value).decode("utf-8")
    except RecursionError as fault:
        raise error("not_canonical", reason="it is nested too deep") from fault
    except ValueError as fault:  # the library's own errors and the codec's are both ValueErrors
        raise error("not_canonical", reason=str(fault)) from fault


def parse_jcs(text: str) -> Any:
    """Return the value of a text in JCS form, or raise not_canonical (or why it is no JSON at all)."""
    value = parse_json(text)
    if jcs(value) != text:
        raise error("not_canonical", reason="the text is not in JCS form")
    return value


def is_jcs(text: str) -> bool:
    """Tell whether a text is the canonical form of its value."""
    try:
        parse_jcs(text)
    except PosthouseError:
        return False
    return True


def _refuse_large_floats(value: Any) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, float) and SAFE_INTEGER_MAX < abs(item) < _FIRST_EXPONENT_FORM:
            raise error("not_canonical", reason=f"{item!r} is written as an integer beyond 2^53-1")
