"""Records of the journal: what a row is, its canonical line for digests, and every record type.

A record is a fact: when, type, mesh, by whom (`actor`), about what (`ref`), and a small JSON body. Readers rely on
these shapes for ever. If you add or change a type: 1. declare it in its area below (a change raises `version` and
keeps old fields readable), 2. `make docs`, 3. the reader in the pipeline, 4. a test that writes it. If you change
the canonical line, every published Merkle root and prune digest changes: 1. a new digest version in protocol.md, 2.
the pipeline, 3. the vectors. Loads no SQLite: Spark workers use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import rfc8785
from blake3 import blake3


class Record(NamedTuple):
    """One fact of the journal; `body` is JSON text."""

    seq: int
    at_ns: int
    type: str
    mesh: str | None
    actor: str | None
    ref: str | None
    body: str

    def decoded_body(self) -> dict[str, Any]:
        """Return the body as a dictionary."""
        return msgspec.json.decode(self.body, type=dict[str, Any])


def canonical_line(record: Record) -> bytes:
    """Return the one line of JSON that stands for a record in digests."""
    fields = record._asdict()
    fields["at_ns"] = str(record.at_ns)  # beyond 2^53, where JSON numbers stop being exact
    return rfc8785.dumps(fields) + b"\n"


def digest_records(records: Iterable[Record]) -> str:
    """Return the BLAKE3 digest over the canonical lines of records in seq order."""
    hasher = blake3()
    for record in records:
        hasher.update(canonical_line(record))
    return hasher.hexdigest()


def digest_contents(contents: Iterable[bytes]) -> str:
    """Return the BLAKE3 digest over events as they are served, a line each, in seq order."""
    hasher = blake3()
    for content in contents:
        hasher.update(content)
        hasher.update(b"\n")
    return hasher.hexdigest()


@dataclass(frozen=True)
class RecordType:
    """The shape of one type of record."""

    name: str
    #: What `ref` names.
    ref: str
    #: Body fields and what they mean; all may be absent unless the text says always.
    body: dict[str, str] = field(default_factory=dict)
    version: int = 1


_STORE = (
    RecordType(
        "journal.snapshot",
        "the last seq that pruning may remove below it",
        {
            "through_seq": "the prefix this snapshot stands for, always",
            "state": "what replay starts from: locks, members, counters, open deliveries; always",
        },
    ),
    RecordType("config.changed", "the name of what changed", {"changes": "the new values by setting, always"}),
    # Aggregated: a row for each refusal would be a way to fill the disk.
    RecordType(
        "refused",
        "the error code",
        {
            "code": "the error code, always",
            "key": "whose requests were refused, always",
            "minute": "the Unix minute, always",
            "count": "how many in that minute, always",
        },
    ),
)
_EVENTS = (
    RecordType(
        "event.accepted",
        "the event id",
        {"kind": "the event's kind, always", "size": "bytes of its canonical form, always"},
    ),
    RecordType(
        "message.accepted",
        "the event id",
        {
            "size": "bytes of the event's canonical form, always",
            "client_message_id": "the sender's id of the message, always",
            "fingerprint": "hex of the accept fingerprint, always",
            "destination_kind": "topic or dm, always",
            "destination_ref": "the topic, or the recipient's key in hex; always",
            "recipients": "node ids whose delivery this record opens, always",
            "blocked": "node ids whose delivery was opened as blocked: they block the sender",
            "not_queued": "recipients left out, each {recipient, reason}",
            "mentions": "node ids that are mentioned",
            "reply_to": "the event id replied to",
        },
    ),
    RecordType(
        "confirmation.accepted",
        "the event id",
        {
            "size": "bytes of the event's canonical form, always",
            "ids": "the message ids that it closes, always",
            "sender": "the node id of their sender, always",
        },
    ),
)
_IDS = "the message ids, always"
_DELIVERIES = (
    # One record per batch, written with what commits next: nobody waits for it.
    RecordType(
        "delivery.sent",
        "the reader's node id",
        {
            "ids": _IDS,
            "was_stored": "for each id whether it came from the queue, always",
            "attempts": "for each id the number of the attempt, always",
        },
    ),
    RecordType(
        "delivery.confirmed",
        "the reader's node id",
        {
            "ids": _IDS,
            "was_stored": "for each id whether it came from the queue, always",
            "confirmation": "the event id of the confirmation, always; in the mesh pinch the Pinch message id, "
            "or empty where the answer to a ping proved that it was read",
        },
    ),
    RecordType("delivery.rejected", "the message id", {"reason": "what the reader said, always"}),
    RecordType("delivery.expired", "the reader's node id", {"ids": _IDS}),
    RecordType(
        "delivery.dead",
        "the message id",
        {"attempts": "how often it was sent, always", "reason": "which bound it reached, always"},
    ),
    RecordType(
        "delivery.requeued",
        "the message id",
        {"recipient": "the reader's node id, always; actor is the operator", "from_state": "the state it had, always"},
    ),
    RecordType(
        "delivery.purged",
        "the reader's node id",
        {"ids": _IDS, "recipient": "the reader's node id, always; actor is the operator"},
    ),
    RecordType("delivery.blocked", "the reader's node id", {"ids": _IDS, "sender": "who is blocked, always"}),
)
_GRANT = {
    "owner": "the node id of the holder, always",
    "token": "the fencing token, always",
    "lease_ms": "the length of the lease, always",
    "run_id": "the run of the relay that decided, always",
    "granted_boot_ns": "boot time of the grant, always",
    "deadline_boot_ns": "boot time at which the lease ends, always",
}
_REQUEST = {"request_id": "the caller's id of the request", "wait_ms": "how long the caller waited"}
_LOCKS = (
    RecordType(
        "lock.run_started",
        "the run id",
        {
            "run_id": "the run that starts, always",
            "boot_id": "the boot it runs in, always",
            "boot_ns": "boot time of the start, always",
            "reopened": "how many leases, all that were not released, got their full length again, always",
            "token_leap": "what was added to every token, because the store had been restored",
        },
    ),
    RecordType("lock.acquired", "the resource", _GRANT | _REQUEST),
    RecordType("lock.renewed", "the resource", _GRANT),
    RecordType(
        "lock.released",
        "the resource",
        {
            "owner": "the node id of the former holder, always",
            "token": "the fencing token it held, always",
            "run_id": "the run of the relay that decided, always",
            "boot_ns": "boot time of the release, always",
        },
    ),
    RecordType(
        "lock.taken_over",
        "the resource",
        _GRANT
        | _REQUEST
        | {
            "former_owner": "whose lease was over, always",
            "former_token": "the token it held, always",
            "former_deadline_boot_ns": "boot time at which its lease ended, always",
        },
    ),
)
_ACCESS = {"read": "allow or deny", "write": "allow or deny", "lock": "allow or deny"}
_MESHES = (
    RecordType("mesh.created", "the mesh", {"open": "whether any key that authenticates is a member, always"}),
    RecordType("mesh.changed", "the mesh", {"open": "whether any key that authenticates is a member, always"}),
    RecordType(
        "mesh.invited",
        "the id of the invite, never its code",
        {
            "role": "the role of who joins, always",
            "uses": "how often it may be used, always",
            "expires_at_ns": "until when, always",
        },
    ),
    RecordType("mesh.access_set", "the node id, or * for all", _ACCESS),
    RecordType("mesh.access_removed", "the node id, or * for all"),
    RecordType(
        "member.joined",
        "the node id",
        {"name": "its name in the mesh, always", "role": "its role, always", "invite": "the id of the invite it used"},
    ),
    RecordType("member.changed", "the node id", {"name": "its name in the mesh, always", "role": "its role, always"}),
    RecordType("member.left", "the node id"),
    RecordType("member.subscribed", "the node id", {"pattern": "of topics, always"}),
    RecordType("member.unsubscribed", "the node id", {"pattern": "of topics, always"}),
    RecordType("member.blocked", "the node id that is blocked; actor blocks it"),
    RecordType("member.unblocked", "the node id that is no longer blocked by actor"),
    RecordType("topic.created", "the topic"),
    RecordType("topic.removed", "the topic"),
)
_MESSAGE = "the message id"
_ENDPOINT = {
    "endpoint": "the subject of the endpoint, always",
    "endpoint_hash": "the name of its mailbox, always",
}
_LETTER = _ENDPOINT | {
    "subject": "the subject of the message, always",
    "created_at_ms": "Unix milliseconds of the message, always",
    "expires_at_ms": "Unix milliseconds when it expires, always",
}
_RESERVED = "[seq of the journal, boot time in ns, 1 if it counted for the rate] when the rules decided"
_BOOT = "boot time in ns when it was told to the breaker"
_BUS = (
    RecordType(
        "bus.published",
        _MESSAGE,
        _ENDPOINT
        | {
            "envelope": "the whole envelope as it was stored, always",
            "published_to": "a wildcard subject",
            "requeued_from": "the id of the dead letter it was made from",
            "reserved": _RESERVED,
        },
    ),
    RecordType("bus.handled", _MESSAGE, _ENDPOINT | {"handler_ms": "how long the handlers took together"}),
    RecordType("bus.failed", _MESSAGE, _LETTER | {"reason": "what the handler raised, always", "boot_ns": _BOOT}),
    RecordType(
        "bus.dead",
        _MESSAGE,
        _LETTER
        | {
            "reason": "why it is a dead letter, always",
            "refused": "access_denied or budget_exceeded when a rule refused the publish",
            "budget": "the budget that the rules judged then",
            "reserved": _RESERVED,
        },
    ),
    RecordType("bus.requeued", "the id of the dead letter", _ENDPOINT | {"message_id": "the new message, always"}),
    RecordType("bus.purged", "the mailbox", {"ids": "the dead letters that are gone, always"}),
    RecordType("bus.registered", "the endpoint", _ENDPOINT | {"owner": "who may register it again"}),
    RecordType("bus.unregistered", "the endpoint", _ENDPOINT),
    RecordType(
        "bus.refused",
        "the reason",
        {
            "reason": "access_denied, rate_limited, backpressure, circuit_open or budget_exceeded; always",
            "key": "the sender and the endpoint, always",
            "minute": "the Unix minute, always",
            "count": "how many in that minute, always",
            "endpoint_hash": "the mailbox, or * for the rate",
            "moments": "each [seq of the journal, boot time in ns, how many] when a rule refused",
            "charged": "true when these publishes had counted for the rate and left no other record",
        },
    ),
    RecordType(
        "bus.withdrawn",
        _MESSAGE,
        _ENDPOINT | {"reserved": f"{_RESERVED}; its file could not be written", "boot_ns": _BOOT},
    ),
    RecordType("bus.served", "the endpoint; a process serves it from now on and its breaker is closed", _ENDPOINT),
    RecordType("bus.left", "the endpoint; nobody serves it any more", _ENDPOINT),
    RecordType("bus.breaker_reset", "the endpoint whose breaker was closed by hand", _ENDPOINT),
    RecordType("bus.booted", "the boot id; boot times before it mean nothing any more", {}),
)
_ROW = "the outbox row's id"
_CLIENT_ID = {"client_message_id": "the caller's id of the message, always"}
_LANDED = {"message_id": "the event id at the relay, always", "history_id": "its seq at the relay, always"}
_DAEMON = (
    RecordType(
        "outbox.queued",
        _ROW,
        _CLIENT_ID
        | {
            "fingerprint": "hex of the request fingerprint, always",
            "destination": "member or topic, always",
            "size": "bytes of the event, always",
        },
    ),
    RecordType("outbox.inflight", _ROW, {"ids": "all rows of the frame, always"}),
    RecordType("outbox.deferred", _ROW, {"attempts": "so far, always", "code": "the transient error, always"}),
    RecordType("outbox.done", _ROW, _CLIENT_ID | _LANDED),
    RecordType("outbox.dead", _ROW, _CLIENT_ID | {"code": "the permanent error, or the age; always"}),
    RecordType(
        "outbox.aborted",
        _ROW,
        _CLIENT_ID | {"aborted_by": "who did it, always", "superseded_by": "the row that replaces it"},
    ),
    RecordType("outbox.pressure", "the outbox", {"bytes": "in use, always", "max_bytes": "the bound, always"}),
    RecordType(
        "inbox.received",
        "the inbox row's id",
        _CLIENT_ID
        | {
            "message_id": "the event id, always",
            "topic": "the topic, absent for a direct message",
            "size": "bytes of the body, always",
            "undecryptable": "true when it could not be opened",
        },
    ),
    RecordType("inbox.seen", "the last of the rows", {"ids": "the inbox rows, always"}),
    RecordType("inbox.deleted", "the last of the rows", {"count": "how many rows were too old, always"}),
)
_PINCH = (
    RecordType(
        "pinch.accepted",
        "the Pinch message id, empty for an envelope without one",
        {
            "recipient": "the Pinch address it goes to, always",
            "message_type": "the number of its MessageType, always",
            "size": "bytes of the envelope, always",
            "id": "the id its delivery has in the queue and in records of deliveries, always",
            "blocked": "true when the recipient blocks the sender: then it waits for nobody",
        },
    ),
    RecordType(
        "pinch.confirmed",
        "the Pinch message id",
        {
            "sender": "the Pinch address that sent the message, always",
            "signature": "hex of the confirm's signature, always",
            "timestamp": "the signed time, always",
            "state": "what the confirm says, always",
            "was_stored": "whether it came from the queue, always",
        },
    ),
    RecordType(
        "pinch.blocked",
        "the Pinch address that is blocked",
        {"blocked": "false when a block was lifted, always", "dropped": "ids of queued messages that went with it"},
    ),
)


def types_by_name(declared: Iterable[RecordType]) -> MappingProxyType[str, RecordType]:
    """Return the types by name; refuse a name that is declared twice."""
    types: dict[str, RecordType] = {}
    for record_type in declared:
        if record_type.name in types:
            raise ValueError(f"the record type {record_type.name} is declared twice")
        types[record_type.name] = record_type
    return MappingProxyType(types)


RECORD_TYPES = types_by_name((*_STORE, *_EVENTS, *_DELIVERIES, *_LOCKS, *_MESHES, *_BUS, *_DAEMON, *_PINCH))
