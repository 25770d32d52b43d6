"""Which mail, on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from posthouse.client.daemon.calls import InboxFilter

_GROUP = Group("Filter", sort_key=3)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class Wanted:
    """Conditions on mail; all must hold."""

    sender: Annotated[str | None, Parameter(name="--from", help="From this member.")] = None
    topic: Annotated[str | None, Parameter(help="In this topic.")] = None
    since: Annotated[str | None, Parameter(help="Behind this one, by its inbox id.")] = None
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000), help="How many at most.")] = 100

    def filter(self, *, unread: bool) -> InboxFilter:
        """Return the conditions as the daemon takes them."""
        topic = None if self.topic is None else self.topic.removeprefix("#")
        return {
            "sender": self.sender,
            "topic": topic,
            "since": self.since,
            "limit": self.limit,
            "unread": unread or None,
        }


#: The default of every command's `wanted`.
ANY = Wanted()
