"""What operations on locks answer: one struct each for HTTP and stream alike, made from what the rules decided.

A refusal is a value too, the error whose problem is sent. If you change a field: 1. docs/protocol.md, 2. openapi.json,
3. the client that reads it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import Denied, Grant, LockView, Released


class Granted(msgspec.Struct, frozen=True):
    """The lock is held by its owner until the lease is over; count the lease from before you asked."""

    resource: str
    owner: str
    token: int
    lease_ms: int
    #: wall time, for people: never compare it with a clock
    expires_at_ns: int


class Freed(msgspec.Struct, frozen=True):
    """The lock is free; the token will not be granted again."""

    resource: str
    owner: str
    token: int


class LockState(msgspec.Struct, frozen=True):
    """Who holds a lock, and for how long still; a free one shows its last token, one never locked 0."""

    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int


class ListedLock(msgspec.Struct, frozen=True):
    """A lock in a list."""

    mesh: str
    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int


class LockPage(msgspec.Struct, frozen=True):
    """Part of a list of locks; a cursor of null says that there are no more."""

    locks: list[ListedLock]
    cursor: str | None


Success = Granted | Freed | LockState | LockPage
Answer = Success | PosthouseError

#: Called once with the answer, or with what kept the store from giving one; with neither when the caller was gone.
Told = Callable[[Answer | None, BaseException | None], None]


def answer_of(outcome: Grant | Released | Denied | LockView, resource: str) -> Answer:
    """Return what the client is told of an outcome."""
    if isinstance(outcome, Denied):
        return error(outcome.code, resource=resource, **outcome.fields)
    if isinstance(outcome, LockView):
        return LockState(outcome.resource, outcome.held, outcome.owner, outcome.token, outcome.remaining_ms)
    row = outcome.row
    if isinstance(outcome, Released):
        return Freed(row.resource, row.owner, row.token)
    return Granted(row.resource, row.owner, row.token, row.lease_ms, outcome.expires_at_ns)
