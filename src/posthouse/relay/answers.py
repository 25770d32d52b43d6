"""What an accept answers: one object for every way in, HTTP or stream.

`Accepted` is the body of 201, 200 (already there) and 202 (ephemeral); `Declined` carries the error whose problem
is the body. A refusal is a value here, because a list has many answers and one refusal must not hide the others.
If you change the fields of Accepted: 1. docs/protocol.md, 2. openapi.json, 3. the client that reads them.
"""

from __future__ import annotations

import msgspec

from posthouse.model.errors import PosthouseError


class Accepted(msgspec.Struct, frozen=True):
    """The event is there: committed, or passed on when it is ephemeral."""

    id: str
    #: place in the journal; None for an ephemeral event
    seq: int | None
    #: the event was there before; nobody is told a second time
    duplicate: bool = False

    @property
    def status(self) -> int:
        """The HTTP status that goes with this answer."""
        if self.seq is None:
            return 202
        return 200 if self.duplicate else 201


class Declined(msgspec.Struct, frozen=True):
    """The event was not accepted; nothing of it was stored."""

    #: the id the event claims, or None when it could not be read
    id: str | None
    error: PosthouseError

    @property
    def status(self) -> int:
        """The HTTP status that goes with this answer."""
        return self.error.spec.status


Answer = Accepted | Declined
