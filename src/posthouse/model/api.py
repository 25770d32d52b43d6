"""Bodies of the relay's HTTP API that relay and client share, except those in lock_api and message_api.

One struct per body; both sides encode and decode it. Times are nanoseconds since 1970 unless the name says otherwise.
If you change a field: 1. docs/protocol.md, 2. docs/openapi.json, 3. a test of relay and client each.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from posthouse.model.event import Event, Tag
from posthouse.model.limits import INT64_MAX
from posthouse.model.mesh_limits import MeshLimits
from posthouse.model.message_api import EventId
from posthouse.model.node import Role


class StoredEventBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event with its signed fields, and its seq in the journal.

    `suspect` is present, and true, if an admin revoked its key and it was signed or accepted after the time from which
    the key is not trusted.
    """

    id: EventId
    pubkey: Annotated[str, Meta(description="A node id.", extra_json_schema={"pattern": "^ed25519:[0-9a-f]{64}$"})]
    created_at_ns: int
    kind: int
    tags: tuple[Tag, ...]
    content: str
    sig: str
    seq: int
    suspect: bool = False

    @property
    def event(self) -> Event:
        """The event itself; its id and signature are not verified."""
        return Event(
            id=self.id,
            pubkey=self.pubkey,
            created_at_ns=self.created_at_ns,
            kind=self.kind,
            tags=self.tags,
            content=self.content,
            sig=self.sig,
        )


class EventPage(msgspec.Struct, frozen=True):
    """Part of a list of events; if the cursor is null there are no more."""

    events: list[StoredEventBody]
    cursor: str | None


class Count(msgspec.Struct, frozen=True):
    """A number of events."""

    count: int


class AnswerLine(msgspec.Struct, frozen=True):
    """One line of the answer to a request."""

    type: str
    #: the answer, in lines of type partial, final, busy, failed and no_responder
    event: StoredEventBody | None = None


class MeshList(msgspec.Struct, frozen=True):
    """Meshes, each with its name, openness, and the caller's role and member name."""

    meshes: list[dict[str, Any]]


class ActiveInvite(msgspec.Struct, frozen=True):
    """An invite that can be used now; its code is known only to its creator."""

    id: str
    role: Annotated[
        str, Meta(description="The role that it gives.", extra_json_schema={"enum": [each.value for each in Role]})
    ]
    uses_left: int
    expires_at_ns: int
    creator: str


class InviteList(msgspec.Struct, frozen=True):
    """The invites to a mesh that can be used now, oldest first."""

    invites: list[ActiveInvite]


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


_Seq = Annotated[int, Meta(ge=1, le=INT64_MAX)]
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class ArchivedRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of the journal that the archive holds, with the BLAKE3 digests of the rows read back from it.

    `digest` covers the canonical lines of the records, `contents` the events without an expiration: in version 1 each
    event as it is served, one per line; in version 2 the BLAKE3 digest of each event, erased ones included. Without
    `contents` only records are deleted, and events keep their content.
    """

    epoch: str
    from_seq: _Seq
    to_seq: _Seq
    digest: _Digest
    contents: _Digest | None = None
    contents_version: Annotated[int, Meta(ge=1, le=2)] = 1


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
    #: how many members are listed
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
    #: relay that leads; None if there is no leader now
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
    """How many records were deleted, how many events lost their content, and the oldest seq that remains."""

    pruned: int
    emptied: int
    oldest_seq: int
