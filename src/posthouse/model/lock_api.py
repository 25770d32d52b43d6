"""Answers about locks, over HTTP and on the stream: the relay encodes them, the client decodes them.

Fields that a plain exclusive lock of one session does not need are absent while they have their default, so a client
that does not know sessions, trees and modes reads the same as before. If you change a field: 1. docs/protocol.md,
2. docs/openapi.json and docs/asyncapi.json, 3. a test of relay and client each.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

#: plain text, so that a client reads the mode of a newer relay
_Mode = Annotated[
    str,
    Meta(
        description="A shared lock excludes exclusive ones, not other shared ones.",
        extra_json_schema={"enum": ["exclusive", "shared"]},
    ),
]


class LockGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lock is held by its owner until the lease is over; count `lease_ms` from just before the request.

    `expires_at_ns` is wall time, for people; never compare it with a clock.
    """

    resource: str
    owner: str
    token: int
    lease_ms: int
    expires_at_ns: int
    #: the session that holds it; empty for clients that do not use sessions
    session: str = ""
    mode: _Mode = "exclusive"
    #: whether the names below are locked, too
    tree: bool = False
    #: the other resources of the same grant
    also: tuple[str, ...] = ()


class LockHolder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A lease that covers a lock; `token` and `session` are for the holder's node and for admins, else 0 and absent."""

    resource: str
    owner: str
    token: int
    remaining_ms: int
    session: str = ""
    mode: _Mode = "exclusive"
    tree: bool = False


class LocksBroken(msgspec.Struct, frozen=True):
    """The leases that an admin ended; their holders notice when they renew, write or release."""

    resource: str
    broken: tuple[LockHolder, ...]


class LockStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The holders of a lock and their remaining time; a free lock shows its last token, one that was never locked 0.

    The token is for the holder's node and for admins; other nodes see 0.
    """

    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int
    #: the leases that cover it, unless it is one plain exclusive lease of this name; at most 64
    holders: tuple[LockHolder, ...] = ()
    #: how many requests wait for it
    waiting: int = 0


class LockSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A lock in a list: a lease, or a free name; the token is for the holder's node and for admins, others see 0."""

    mesh: str
    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int
    mode: _Mode = "exclusive"
    tree: bool = False
    #: as the token, for the holder's node and for admins
    session: str = ""
    #: how many requests wait
    waiting: int = 0


class LockList(msgspec.Struct, frozen=True):
    """Part of a list of locks; if the cursor is null there are no more."""

    locks: list[LockSummary]
    cursor: str | None
