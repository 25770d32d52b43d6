"""Filters on the command line: the same options for every command that selects events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from posthouse.model.errors import error

_GROUP = Group("Filter", sort_key=3)
_MANY = Parameter(negative=(), show_default=False)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class Wanted:
    """Which events; all conditions must hold, of several values of one kind one must."""

    kind: Annotated[tuple[int, ...], _MANY, Parameter(help="A kind; several times for any of them.")] = ()
    author: Annotated[tuple[str, ...], _MANY, Parameter(help="A node id, or the name of a member.")] = ()
    id: Annotated[tuple[str, ...], _MANY, Parameter(help="An event id.")] = ()
    tag: Annotated[tuple[str, ...], _MANY, Parameter(help="NAME=VALUE: a tag with this first value.")] = ()
    since_ns: Annotated[int | None, Parameter(help="Created at this time or later; nanoseconds since 1970.")] = None
    until_ns: Annotated[int | None, Parameter(help="Created at this time or earlier.")] = None

    def filter(self, mesh: str | None, authors: list[str]) -> dict[str, Any]:
        """Return the filter as it goes over the wire; `authors` are the resolved node ids."""
        given: dict[str, Any] = {
            "kinds": list(self.kind),
            "authors": authors,
            "ids": list(self.id),
            "mesh": mesh,
            "since_ns": self.since_ns,
            "until_ns": self.until_ns,
        }
        for text in self.tag:
            name, equals, value = text.partition("=")
            if not equals or not name:
                raise error("usage", text=f"--tag {text!r} is not NAME=VALUE")
            given.setdefault(f"#{name}", []).append(value)
        return {name: value for name, value in given.items() if value not in (None, [])}


#: The default of every command's `wanted`.
ANY = Wanted()
