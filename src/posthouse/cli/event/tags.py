"""Tags on the command line: NAME=VALUE, or a JSON array for tags with more values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter

from posthouse.model.errors import error

#: The tags of an event.
EventTags = Annotated[
    tuple[str, ...],
    Parameter(
        name="--tag",
        negative=(),
        show_default=False,
        help='A tag: NAME=VALUE, or a JSON array such as ["blob","SHA256","SIZE","URL"]. Several times.',
    ),
]


def parse_tags(given: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the tags, or raise a usage error."""
    return [_parse(text) for text in given]


def _parse(text: str) -> tuple[str, ...]:
    if text.startswith("["):
        return _parse_array(text)
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise error("usage", text=f"--tag {text!r} is not NAME=VALUE")
    return name, value


def _parse_array(text: str) -> tuple[str, ...]:
    import msgspec

    try:
        tag = msgspec.json.decode(text, type=tuple[str, ...])
    except ValueError as fault:
        raise error("usage", text=f"--tag {text!r} is not a JSON array of texts: {fault}") from fault
    if not tag:
        raise error("usage", text="a tag has at least a name")
    return tag
