"""The types of responses of the local API that DaemonClient returns as plain values.

They describe the API in its OpenAPI document; handlers build the same objects themselves, and a test compares the two
with real answers. Values that DaemonClient returns as structs are in posthouse.client.daemon.local_api.
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.client.daemon.local_api import Agent, InboxItem, MeshState, OutboxRow, Reservation, ThreadSummary


class LocalError(msgspec.Struct):
    """Why a request was refused; the fields of the case are next to these."""

    #: code of the error, as in docs/reference/errors.md
    error: str
    hint: str
    detail: str


class InboxPage(msgspec.Struct):
    """Messages, and the id from which the next page continues."""

    items: list[InboxItem]
    next: str | None
    #: mark of the reader that asked
    mark: str | None


class OutboxPage(msgspec.Struct):
    """Rows, and the id from which the next page continues."""

    items: list[OutboxRow]
    next: str | None


class OutboxDetail(OutboxRow, frozen=True, kw_only=True):
    """A row with the rows it was requeued from and into, oldest first."""

    chain: list[OutboxRow]


class Aborted(msgspec.Struct):
    """The row that was aborted."""

    aborted_row_id: str


class Withdrawn(msgspec.Struct):
    """The message that was taken back."""

    message_id: str
    #: dropped: it had not left this host; withdrawing: its readers are notified
    state: str


class Count(msgspec.Struct):
    """How many messages changed."""

    count: int


class MovedMark(msgspec.Struct):
    """The mark that was moved."""

    mark: str


class MessageState(msgspec.Struct):
    """The outbox row of a message, and its state per recipient at the relay."""

    outbox: OutboxRow | None
    relay: dict[str, Any] | None
    #: code of the error if the relay could not be reached
    relay_error: str | None
    #: how far a message of this host has got; absent for messages of others, as are the next two
    state: str | None = None
    answered_at: str | None = None
    has_receipts: bool | None = None


class ThreadPage(msgspec.Struct):
    """Threads, and where the next page continues."""

    items: list[ThreadSummary]
    next: str | None


class HistoryPage(msgspec.Struct):
    """Messages, newest first; `before` continues."""

    messages: list[dict[str, Any]]
    before: str | None


class TopicName(msgspec.Struct):
    """A topic."""

    topic: str


class Subscription(msgspec.Struct):
    """A pattern, and whether this node has subscribed to it."""

    topic: str
    subscribed: bool


class TopicList(msgspec.Struct):
    """The topics of the mesh and the subscriptions of this node."""

    topics: list[str]
    #: None without a connection
    subscriptions: list[str] | None
    is_cached: bool


class ReleasedLock(msgspec.Struct):
    """The lock that was released."""

    resource: str
    released: bool


class PeerList(msgspec.Struct):
    """The members of the mesh and their presence."""

    peers: list[dict[str, Any]]
    mesh: str
    is_cached: bool


class AppliedProfile(msgspec.Struct):
    """The profile as it is now."""

    applied: dict[str, Any]


class AgentList(msgspec.Struct):
    """Agents of this host."""

    items: list[Agent]


class OnMail(msgspec.Struct):
    """The command that runs when mail for an agent arrives."""

    name: str
    on_mail: str | None


class EventHook(msgspec.Struct):
    """A hook of the settings file."""

    name: str
    event: str
    #: how many of its events are parked
    parked: int


class ParkedEvent(msgspec.Struct):
    """An event whose command keeps failing."""

    hook: str
    event_id: str
    event: str
    mesh: str | None
    #: the subject of the event: the id of a message, or a relay
    ref: str | None
    attempts: int
    last_exit: int
    parked_at: str
    #: time of the next attempt
    next_at: str


class EventHooks(msgspec.Struct):
    """The hooks of the settings file, and their parked events, the oldest first."""

    items: list[EventHook]
    parked: list[ParkedEvent]


class ChangedHook(msgspec.Struct):
    """How many parked events of a hook were changed."""

    hook: str
    count: int


class GrantedReservation(msgspec.Struct):
    """The paths that were reserved."""

    id: str
    items: list[Reservation]


class ReservationList(msgspec.Struct):
    """Reserved paths."""

    items: list[Reservation]


class MeshList(msgspec.Struct):
    """The meshes of the daemon."""

    items: list[MeshState]


class RotatedKey(msgspec.Struct):
    """The key of this host in a mesh, before and after its rotation."""

    mesh: str
    before: str
    node: str


class MeshName(msgspec.Struct):
    """A mesh."""

    mesh: str
