"""Values that a daemon's local API returns.

The field names are a contract: `broker_message_id` is the event id of a message and `history_id` its seq at the
relay. Fields that a newer daemon adds are ignored.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from posthouse.model.message_api import Answer

T = TypeVar("T")
_NEWER_COUNTED = 100  # the daemon counts no further


class Page(list[T]):
    """One page of an answer, and the id from which the next page continues."""

    def __init__(self, items: list[T], following: str | None = None, mark: str | None = None) -> None:
        super().__init__(items)
        #: give it as `after` (oldest first) or `before` (newest first); None at the end
        self.next = following
        #: the mark that a reader moves once it has the items
        self.mark = mark


CLOCK_WARNED_S = 5  # smaller differences are usual between machines, and the relay reports whole seconds


class Accepted(msgspec.Struct, frozen=True):
    """A message that the daemon has stored on disk; it survives a power loss."""

    client_message_id: str
    #: queued, inflight or done
    status: str
    #: True if this id was sent before and the relay has the message
    duplicate: bool = False
    #: set once the relay has the message
    broker_message_id: str | None = None
    history_id: int | None = None
    #: id of the outbox row
    id: str | None = None
    #: event id, set before the relay has the message
    message_id: str | None = None
    #: set if the recipient's agent is paused: the message waits there
    recipient_paused: PausedState | None = None
    #: True for a topic that this host does not know while the relay is unreachable: the relay may refuse the post
    topic_unverified: bool = False


class InboxItem(msgspec.Struct, frozen=True):
    """A message that this node has received."""

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
    #: code of the error if it could not be opened; then there is no body
    undecryptable: str | None = None
    #: inbox id of a different message of this sender with the same client_message_id: one of the two was sent by
    #: mistake
    conflicts_with: str | None = None
    #: the sender's agent, "" for its host
    from_agent: str = ""
    #: the agent that a direct message is for, "" for the default inbox
    to_agent: str = ""
    #: whose inbox it is in
    agent: str = ""
    #: by the sender's clock; None for mail that arrived before this was stored
    sent_at: str | None = None
    #: time since it was sent, as of the moment at which the daemon returned it
    age_s: float = 0.0
    #: later messages of the same sender in this inbox; 100 means 100 or more
    newer_from_sender: int = 0
    #: the sender's limit
    valid_until: str | None = None
    #: True after that limit: a message that was unread then has no body, unless `item` is called with `confirm`
    is_stale: bool = False
    #: True if it only reports a failure
    is_failure: bool = False
    #: inbox id of the later message of the same sender that supersedes or withdraws it
    replaced_by: str | None = None
    #: a message that was unread when it was withdrawn has no body
    is_withdrawn: bool = False
    #: when an earlier process of this agent read it without answering it
    read_before: str | None = None
    #: now or queue if its sender waits for an answer until `valid_until`
    request: str | None = None
    #: span of OpenTelemetry that sent it; None if its sender does not trace it
    traceparent: str | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings for a reader before it acts on the message, in words."""
        newer = f"{self.newer_from_sender}{'+' if self.newer_from_sender >= _NEWER_COUNTED else ''}"
        notices = (
            (self.is_withdrawn, "withdrawn by its sender"),
            (self.replaced_by is not None and not self.is_withdrawn, "superseded by a later message"),
            (
                self.request is not None and not self.is_stale,
                f"its sender waits for your reply until {self.valid_until}",
            ),
            (self.is_stale, f"stale since {self.valid_until}: ask its sender whether it still holds"),
            (self.read_before is not None, f"read before, at {self.read_before}, and not answered"),
            (self.newer_from_sender > 0, f"{newer} newer from this sender"),
        )
        return tuple(text for is_so, text in notices if is_so)


class Participant(msgspec.Struct, frozen=True):
    """An agent that wrote in a thread."""

    node: str
    name: str | None
    #: "" for the host itself
    agent: str


class BudgetLeft(msgspec.Struct, frozen=True):
    """The budget that the next message of a thread has."""

    hops_left: int
    calls_left: int
    #: UTC, as text
    expires_at: str


class ThreadMessage(msgspec.Struct, frozen=True):
    """A message of a thread, received or sent."""

    message_id: str
    reply_to_id: str | None
    #: when this host received or queued it; UTC, as text
    at: str
    sender: str
    sender_name: str | None
    from_agent: str
    #: node id, or #topic
    to: str
    to_agent: str
    #: None if it cannot be opened, was withdrawn, is no longer kept, or became stale unread
    body: str | None
    is_own: bool = False
    is_read: bool = False
    #: a sent message: as in OutboxRow, or answered; a received one: unread, read or answered
    state: str = ""
    #: False if it only reports a failure or withdraws an earlier message, was itself withdrawn or replaced, or if its
    #: `valid_until` has passed
    expects_answer: bool = True


class Thread(msgspec.Struct, frozen=True):
    """The messages that answer each other, oldest first."""

    #: message id of the first one
    id: str
    subject: str
    participants: tuple[Participant, ...]
    messages: tuple[ThreadMessage, ...]
    #: None if no message carries one
    budget: BudgetLeft | None = None
    #: False if its beginning is not on this host, or it is longer than what is shown
    is_complete: bool = True
    mesh: str = ""


class ThreadSummary(msgspec.Struct, frozen=True):
    """A thread in a list, with its newest message, whose body is cut to one line."""

    #: message id of the first one
    id: str
    subject: str
    participants: tuple[Participant, ...]
    message_count: int
    last: ThreadMessage
    budget: BudgetLeft | None = None
    is_complete: bool = True
    mesh: str = ""


class Exchange(msgspec.Struct, frozen=True):
    """How many messages one agent sent to another, or to a topic."""

    #: node id
    sender: str
    #: "" for the host itself
    from_agent: str
    #: node id, or #topic
    to: str
    to_agent: str
    count: int
    #: UTC, as text
    last_at: str


class Traffic(msgspec.Struct, frozen=True):
    """Pairs that exchanged messages, one of them an agent of this host; the busiest first."""

    items: list[Exchange]
    #: from when on all messages are counted; UTC, as text. Later than asked for if there were very many
    since: str


class OutboxRow(msgspec.Struct, frozen=True):
    """A sent message and its delivery to the relay."""

    id: str
    client_message_id: str
    #: pending, inflight, done, dead or aborted
    status: str
    attempts: int
    #: this and the other times are UTC, as text
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
    #: event id, set before the relay has the message
    message_id: str | None = None
    #: agent of this host that sent it, "" for the host itself
    from_agent: str = ""
    #: agent of the recipient, "" for its default inbox
    to_agent: str = ""
    mesh: str | None = None
    #: queued, sent, confirmed, read, rejected, not_queued, dead or aborted, to this host's knowledge; `message` also
    #: queries the relay
    state: str = "queued"
    #: when the recipient's daemon got it, and when its agent's program was given the text
    confirmed_at: str | None = None
    read_at: str | None = None
    rejected_at: str | None = None
    reject_reason: str | None = None
    #: readers of a topic whose queue had no room for it, each with a reason
    not_queued: tuple[dict[str, Any], ...] = ()


class OutboxChain(msgspec.Struct, frozen=True):
    """A row and its chain of replacements, oldest first."""

    row: OutboxRow
    chain: list[OutboxRow]


class RequeuedRow(msgspec.Struct, frozen=True):
    """An aborted row and its replacement, if it has one."""

    aborted_row_id: str
    new_row_id: str | None = None
    new_client_message_id: str | None = None


class Answers(msgspec.Struct, frozen=True):
    """Answers to a request, in order of arrival."""

    items: list[Answer]
    #: where the next ones begin
    position: int
    #: True after the last answer, and after the deadline
    is_over: bool


class PausedState(msgspec.Struct, frozen=True):
    """Why and until when an agent is paused."""

    #: UTC, as text
    until: str
    reason: str
    #: the agent itself, person or hook; empty for an agent of another host
    set_by: str = ""
    set_at: str = ""


class Agent(msgspec.Struct, frozen=True):
    """An agent of this host."""

    name: str
    #: such as claude-code
    program: str | None = None
    #: directory that the program works in; shown on this host only
    project: str | None = None
    summary: str | None = None
    capabilities: tuple[str, ...] = ()
    #: idle, working or dnd
    status: str = "idle"
    receipts: bool = True
    #: this and the other times are UTC, as text
    created_at: str | None = None
    #: None while it accepts mail
    retired_at: str | None = None
    retired_reason: str | None = None
    renamed_to: str | None = None
    #: the process that used the name last
    pid: int | None = None
    is_running: bool = False
    #: messages in its inbox that are not marked as read; only in the list of agents
    unread: int = 0
    #: when the oldest of them arrived; UTC, as text
    oldest_unread_at: str | None = None
    #: None unless its mail waits and nothing wakes it
    paused: PausedState | None = None


class MeshState(msgspec.Struct, frozen=True):
    """One mesh of a daemon."""

    mesh: str
    #: connected, connecting or failed
    state: str
    #: True once the relay has let this node in
    admitted: bool
    relay: str
    node: str | None
    member: str | None
    #: True for the mesh of requests that name none
    is_default: bool = False
    #: code, text and hint of its failure
    error: str | None = None
    reason: str | None = None
    hint: str | None = None


class Reservation(msgspec.Struct, frozen=True):
    """A path that an agent has reserved, with everything below it."""

    #: shared by the paths of one request
    id: str
    path: str
    #: exclusive or shared
    mode: str
    note: str
    made_at: str
    ends_at: str
    left_s: int
    #: None: a person
    agent: str | None = None
    #: name of the relay's lock, if it has one
    lock: str | None = None


class Health(msgspec.Struct, frozen=True):
    """The state of a daemon."""

    #: True while it has a connection to its relay
    connected: bool
    mesh: str
    #: node id
    node: str
    #: member name of the node
    member: str | None
    relay: str
    #: age of the oldest waiting row
    lag_ms: int
    #: waiting rows
    queue_depth: int
    #: rows sent and not answered
    inflight: int
    uptime_s: int
    is_ephemeral: bool = False
    #: why there is no connection
    relay_error: str | None = None
    #: how far this clock is ahead of the relay's, once the relay has reported its time
    clock_difference_s: int | None = None
    #: False: nothing is given up or deleted because of its age, because the clock may be wrong
    clock_trusted: bool = True
    #: why it may be wrong; usually that no relay was reached yet
    clock_doubt: str | None = None
    #: False while a store cannot be written: the states below say why
    writable: bool = True
    #: open, full, locked, damaged or failed
    outbox_state: str = "open"
    inbox_state: str = "open"
    agents_state: str = "open"
    #: True once the relay has let this node in
    admitted: bool = False
    #: code of the reason why not, such as not_member
    refusal: str | None = None
    #: events whose hook command keeps failing
    parked_events: int = 0
    #: every mesh of the daemon
    meshes: list[MeshState] = []

    @property
    def clock_warning(self) -> str | None:
        """How far this clock is from the relay's, as a sentence; None if they agree."""
        seconds = self.clock_difference_s
        if seconds is None or abs(seconds) < CLOCK_WARNED_S:
            return None
        return f"this clock differs by {seconds} s from the relay's"


class DaemonVersion(msgspec.Struct, frozen=True):
    """The version and the features of a daemon."""

    version: str
    ipc_api: int
    features: tuple[str, ...]
    #: version of its directory's layout
    schema: int


class DaemonEvent(msgspec.Struct, frozen=True):
    """An event that the daemon reports to its listeners."""

    #: message, peer_join, peer_leave, broker_status, outbox_pressure, outbox_dead or system
    event: str
    data: dict[str, Any]
    #: to resume after this event; None for events that the daemon does not keep
    id: str | None = None
