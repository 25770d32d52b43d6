"""Bodies of the relay's HTTP and stream API that relay and client share.

One struct per body; both sides encode and decode it. Times are nanoseconds since 1970 unless the name says
otherwise. If you change a field: 1. docs/protocol.md, 2. `make docs` (openapi.json), 3. a test of relay and client
each.
"""

from __future__ import annotations

from typing import Any

import msgspec


class DeliveryState(msgspec.Struct, frozen=True):
    """How far a message has come to one recipient; None for what has not happened."""

    recipient: str
    #: queued, sent, confirmed, rejected, dead, expired, purged
    state: str
    was_stored: bool | None
    attempts: int
    queued_at_ns: int
    sent_at_ns: int | None
    closed_at_ns: int | None
    reason: str | None
    #: what became of it after it was confirmed: read or rejected; from the reader's host
    receipt: str | None = None
    #: when, by the clock of the reader's host
    receipt_at_ms: int | None = None
    #: why it was rejected
    receipt_reason: str | None = None


class NotQueued(msgspec.Struct, frozen=True):
    """A reader of a topic that a message was not queued for."""

    recipient: str
    reason: str


class MessageStates(msgspec.Struct, frozen=True):
    """A message and where it is."""

    id: str
    seq: int
    mesh: str
    sender: str
    client_message_id: str
    destination_kind: str
    #: the topic, or the recipient's key in hex and, behind a slash, its agent
    destination_ref: str
    first_seen_at_ns: int
    history_available: bool
    mentions: tuple[str, ...]
    deliveries: tuple[DeliveryState, ...]
    #: the sender's agent; "" for the host itself, and from a relay that does not know agents
    from_agent: str = ""
    #: readers of a topic whose queue had no room; they find it in the topic's history
    not_queued: tuple[NotQueued, ...] = ()


class Queue(msgspec.Struct, frozen=True):
    """One reader's queue."""

    recipient: str
    #: unconfirmed messages
    depth: int
    #: rejected and dead ones
    parked: int
    #: ids of confirmations that wait for this node as their sender
    confirmations: int
    oldest_ns: int | None
    #: unconfirmed messages that were sent
    in_flight: int = 0


class QueueRow(msgspec.Struct, frozen=True):
    """A message in a queue, without its content."""

    id: str
    seq: int
    position: int
    recipient: str
    sender: str
    state: str
    was_stored: bool | None
    attempts: int
    timeouts: int
    flaps: int
    queued_at_ns: int
    sent_at_ns: int | None
    closed_at_ns: int | None
    reason: str | None


class Requeued(msgspec.Struct, frozen=True):
    """The ids of the messages that wait again, and of those that did not fit into the queue."""

    requeued: tuple[str, ...]
    no_room: tuple[str, ...]


class LockGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """A grant. `expires_at_ns` is for people; what counts is the lease, from before it was asked for."""

    resource: str
    owner: str
    token: int
    lease_ms: int
    expires_at_ns: int
    #: the session that holds it; empty for clients that do not use sessions
    session: str = ""
    #: "exclusive" or "shared"
    mode: str = "exclusive"
    #: whether the names below are locked, too
    tree: bool = False
    #: the other resources of the same grant
    also: tuple[str, ...] = ()


class LockHolder(msgspec.Struct, frozen=True):
    """A lease that covers a lock; only the holder's node and admins see token and session, others 0 and ""."""

    resource: str
    owner: str
    token: int
    remaining_ms: int
    session: str = ""
    mode: str = "exclusive"
    tree: bool = False


class LockStatus(msgspec.Struct, frozen=True):
    """Who holds a lock; a free one shows its last token. Only the holder's node and admins see the token, others 0."""

    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int
    #: the leases that cover it, unless it is one plain exclusive lease
    holders: tuple[LockHolder, ...] = ()
    #: how many requests wait
    waiting: int = 0


class LocksBroken(msgspec.Struct, frozen=True):
    """The leases that an admin ended."""

    resource: str
    broken: tuple[LockHolder, ...]


class LockSummary(msgspec.Struct, frozen=True):
    """A lock in a list."""

    mesh: str
    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int
    mode: str = "exclusive"
    tree: bool = False
    #: the session that holds it; only the holder's node and admins see it
    session: str = ""
    #: how many requests wait
    waiting: int = 0


class JournalRecord(msgspec.Struct, frozen=True):
    """One record of the relay's journal."""

    seq: int
    at_ns: int
    type: str
    mesh: str | None
    #: node that caused it
    actor: str | None
    #: what it is about
    ref: str | None
    body: dict[str, Any]


class JournalPage(msgspec.Struct, frozen=True):
    """Records and the cursor that continues; newest first it is None at the end."""

    records: list[JournalRecord]
    cursor: str | None


class LockList(msgspec.Struct, frozen=True):
    """Part of a list of locks; go on with the cursor unless it is None."""

    locks: list[LockSummary]
    cursor: str | None


class ArchivedRange(msgspec.Struct, frozen=True):
    """Records that the lake holds, with the digests of what was read back from it."""

    epoch: str
    from_seq: int
    to_seq: int
    #: over the records' canonical lines
    digest: str
    #: over the events without an expiration, as they are served
    contents: str


class Pruned(msgspec.Struct, frozen=True):
    """What the relay took away, and the oldest seq it has now."""

    pruned: int
    emptied: int
    oldest_seq: int
