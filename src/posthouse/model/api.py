"""Bodies of the relay's HTTP and stream API that relay and client share.

One struct per body; both sides encode and decode it. Times are nanoseconds since 1970 unless the name says
otherwise. If you change a field: 1. docs/protocol.md, 2. `make docs` (openapi.json), 3. a test of relay and client
each.
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.model.mesh_limits import MeshLimits
from posthouse.model.request import AnswerState


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
    #: the topic, or the recipient's key in hex and, after a slash, its agent
    destination_ref: str
    first_seen_at_ns: int
    history_available: bool
    mentions: tuple[str, ...]
    deliveries: tuple[DeliveryState, ...]
    #: the sender's agent; "" for the host itself, and from a relay that does not know agents
    from_agent: str = ""
    #: readers of a topic whose queue had no room; they find it in the topic's history
    not_queued: tuple[NotQueued, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """One answer to a request."""

    state: AnswerState
    message_id: str
    #: node id of the responder
    sender: str
    #: the responder's agent; "" for its host
    from_agent: str
    #: the answer in the clear, or the reason of a refusal; None if it could not be opened
    body: str | None
    meta: dict[str, Any] | None = None
    #: the responder's member name, where it is known
    sender_name: str | None = None
    #: error code, if it could not be opened
    undecryptable: str | None = None


class Webhook(msgspec.Struct, frozen=True):
    """A webhook, without its secret."""

    id: str
    mesh: str
    #: it sends what this node may read
    creator: str
    url: str
    #: json, ntfy, slack or email
    preset: str
    #: hmac or ed25519
    signing: str
    filters: list[dict[str, Any]]
    record_types: list[str]
    #: whether it sends messages to the creator's default inbox
    inbox: bool
    #: active, suspended or ended
    state: str
    created_at_ns: int
    #: everything up to this seq was sent, parked or did not match
    cursor: int
    #: failed attempts to send the next event
    attempts: int
    #: before that it sends nothing
    next_attempt_at_ns: int | None
    failing_since_ns: int | None
    last_error: str | None
    last_sent_at_ns: int | None
    #: events that the receiver refused
    parked: int


class WebhookParked(msgspec.Struct, frozen=True):
    """An event that the receiver of a webhook refused."""

    seq: int
    reason: str
    parked_at_ns: int
    #: whether it is about to be sent again
    is_due: bool


class AddedWebhook(msgspec.Struct, frozen=True):
    """A webhook, and what its receiver verifies requests with: the secret, or the public key."""

    webhook: Webhook
    verification_key: str


class IncomingHook(msgspec.Struct, frozen=True):
    """An incoming hook, without its secrets."""

    id: str
    mesh: str
    name: str
    node: str
    destination: str
    to_agent: str
    template: str
    priority: str
    is_github: bool
    max_bytes: int
    rate_per_minute: int
    created_at_ns: int


class AddedIncomingHook(msgspec.Struct, frozen=True):
    """An incoming hook, the path of its URL, and the secret to enter at GitHub."""

    hook: IncomingHook
    path: str
    github_secret: str | None


class WebhookList(msgspec.Struct, frozen=True):
    """The webhooks of a mesh that the caller may see."""

    webhooks: list[Webhook]
    incoming: list[IncomingHook]


class WebhookDetail(msgspec.Struct, frozen=True):
    """A webhook and the oldest events that its receiver refused."""

    webhook: Webhook
    parked: list[WebhookParked]


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
    #: unconfirmed messages that were sent: all before the first that was not
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
    """A grant. `expires_at_ns` is for people; a client counts `lease_ms` from before it sent the request."""

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
    """Records and the cursor that continues after them; None at the end of a list that starts with the newest."""

    records: list[JournalRecord]
    cursor: str | None


class LockList(msgspec.Struct, frozen=True):
    """Part of a list of locks; continue with the cursor unless it is None."""

    locks: list[LockSummary]
    cursor: str | None


class ArchivedRange(msgspec.Struct, frozen=True):
    """Records that the lake holds, with the digests of what was read back from it."""

    epoch: str
    from_seq: int
    to_seq: int
    #: over the records' canonical lines
    digest: str
    #: over the content digests of events without an expiration, those of erased events included
    contents: str
    contents_version: int = 2


class MeshLimitSets(msgspec.Struct, frozen=True):
    """The limits of a mesh: those in force, the mesh's own, and those that admins of the relay allow."""

    limits: MeshLimits
    own: MeshLimits
    allowed: MeshLimits


class MeshUsage(msgspec.Struct, frozen=True):
    """What a mesh has stored, and the limits in force."""

    mesh: str
    #: active or suspended
    state: str
    #: events with content
    events: int
    #: bytes of their JSON
    bytes: int
    #: listed ones
    members: int
    topics: int
    limits: MeshLimits


class DeleteRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Events that an administrator wants deleted: those that meet every condition; at least one must be given."""

    author: str | None = None
    mesh: str | None = None
    ids: tuple[str, ...] | None = None
    #: created before this time
    before_ns: int | None = None
    #: a filter as in REQ
    filter: dict[str, Any] | None = None
    #: in the administrator's words; readers of the events see it
    reason: str = ""
    #: count the events and delete none
    dry_run: bool = False
    #: continue after this seq
    after_seq: int = 0


class ClusterRelay(msgspec.Struct, frozen=True):
    """One relay of a store, as another one sees it."""

    #: names one run of the relay
    relay_id: str
    #: URL under which the other relays reach it
    url: str
    #: counter that it raises in the store twice a second
    beat: int
    #: for how long the counter has not changed, on the clock of the relay that answers
    silent_s: float
    is_self: bool
    is_leader: bool
    is_alive: bool


class ClusterState(msgspec.Struct, frozen=True):
    """The relays of a store as one of them sees them."""

    #: of the relay that answers; None: it is alone on its store
    relay_id: str | None
    #: relay that leads; None: there is none now
    leader: str | None
    term: int | None
    relays: list[ClusterRelay]


class Compacted(msgspec.Struct, frozen=True):
    """The size of the store in bytes, before and after its free space was given back."""

    before: int
    after: int


class Deleted(msgspec.Struct, frozen=True):
    """How far a deletion request got."""

    matched: int
    #: events that lost their content now
    erased: int
    #: the newest seq of the journal
    head: int
    #: where the next request continues; None: everything is deleted
    through_seq: int | None = None


class Pruned(msgspec.Struct, frozen=True):
    """What the relay deleted, and the oldest seq it has now."""

    pruned: int
    emptied: int
    oldest_seq: int
