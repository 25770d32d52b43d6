"""Values that a daemon's local API returns.

The field names are a contract: `broker_message_id` is the event id of a message and `history_id` its seq at the
relay. Fields that a newer daemon adds are ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Accepted(msgspec.Struct, frozen=True):
    """A send that the daemon has on its disk; it survives loss of power from here on."""

    client_message_id: str
    #: queued, inflight or done
    status: str
    #: this id was sent before, and has arrived at the relay
    duplicate: bool = False
    #: once the relay has it
    broker_message_id: str | None = None
    history_id: int | None = None
    #: of the outbox row
    id: str | None = None
    #: event id, known before the relay has it
    message_id: str | None = None


class InboxItem(msgspec.Struct, frozen=True):
    """A message that came for this node."""

    id: str
    client_message_id: str
    message_id: str
    mesh: str
    topic: str | None
    sender: str
    sender_name: str | None
    body: str | None
    meta: dict[str, Any] | None
    #: UTC, as text
    received_at: str
    reply_to_id: str | None
    #: None while it is unread
    seen_at: str | None
    priority: str = "next"
    #: why it could not be opened; there is no body then
    undecryptable: str | None = None


class OutboxRow(msgspec.Struct, frozen=True):
    """A send on its way."""

    id: str
    client_message_id: str
    #: pending, inflight, done, dead or aborted
    status: str
    attempts: int
    #: times are UTC, as text
    enqueued_at: str
    next_attempt_at: str | None = None
    delivered_at: str | None = None
    broker_message_id: str | None = None
    history_id: int | None = None
    last_error: str | None = None
    aborted_at: str | None = None
    aborted_by: str | None = None
    superseded_by: str | None = None
    payload_bytes: int = 0
    #: node id of the recipient, or #topic
    destination: str | None = None
    #: event id, known before the relay has it
    message_id: str | None = None


class OutboxChain(msgspec.Struct, frozen=True):
    """A row, and the rows that were requeued into each other around it, oldest first."""

    row: OutboxRow
    chain: list[OutboxRow]


class RequeuedRow(msgspec.Struct, frozen=True):
    """A row that was aborted, and the one that took its place, if one did."""

    aborted_row_id: str
    new_row_id: str | None = None
    new_client_message_id: str | None = None


class Health(msgspec.Struct, frozen=True):
    """How a daemon is."""

    #: to its relay
    connected: bool
    mesh: str
    #: node id
    node: str
    #: its name in the mesh
    member: str | None
    relay: str
    #: age of the oldest row that waits
    lag_ms: int
    #: rows that wait
    queue_depth: int
    #: rows that are sent and not answered
    inflight: int
    uptime_s: int
    is_ephemeral: bool = False


class DaemonVersion(msgspec.Struct, frozen=True):
    """What a daemon is and can do."""

    version: str
    ipc_api: int
    features: tuple[str, ...]
    #: of its directory
    schema: int


class DaemonEvent(msgspec.Struct, frozen=True):
    """Something that happened, as the daemon tells it while a program listens."""

    #: message, peer_join, peer_leave, broker_status, outbox_pressure, outbox_dead or system
    event: str
    data: dict[str, Any]
    #: where to go on from after a break; absent for what is not kept
    id: str | None = None
