"""Every record type of the journal: what its `ref` names, and the fields of its JSON body.

A record is a fact: time, type, mesh, `actor` (who caused it), `ref` (what it is about), and a small JSON body.
Readers rely on these shapes forever. If you add or change a type: 1. declare it in its area, below, in bus_records or
in daemon_records (a change raises `version` and keeps old fields readable), 2. `make docs`, 3. the reader in the
pipeline, 4. a test that writes it. Loads no SQLite: Spark workers use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

import msgspec

from posthouse.journal.bus_records import BUS
from posthouse.journal.daemon_records import DAEMON, VIA, RecordType

ERASED_PER_RECORD = 200  # keeps a record below 32 KiB
_STORE = (
    RecordType(
        "journal.snapshot",
        "the last seq that pruning may remove below it",
        {
            "through_seq": "the last seq of the prefix that this snapshot replaces, always",
            "state": "the state from which replay starts: locks and their token_counter, members, counters, "
            "open deliveries; always",
        },
    ),
    RecordType(
        "config.changed", "the name of the thing that changed", {"changes": "the new values by setting, always"}
    ),
    # Erased on request; expiring, pruning and archiving write no such record, because the lake keeps that content.
    RecordType(
        "content.erased",
        "events or journal: the rows whose content was erased",
        {
            "seqs": "the erased rows in ascending order, at most ERASED_PER_RECORD, always",
            "ids": "for each seq, the event id or the message id, always",
            "digests": "for each seq, hex of the BLAKE3 digest of the event as it was served, or of the record's "
            "canonical line; null if the store no longer had the content; always",
            "reason": "deleted (by the author), admin or erased, and after a colon words of the operator; always",
        },
    ),
    # Removed by a limit of the mesh; the lake keeps what it has.
    RecordType(
        "content.swept",
        "events",
        {
            "seqs": "the rows that lost their content, at most ERASED_PER_RECORD, always",
            "digests": "for each seq, hex of the BLAKE3 digest of the event as it was served, always",
            "reason": "age, versions or drop_oldest, always",
        },
    ),
    # Aggregated: with one row per refusal a peer could fill the disk.
    RecordType(
        "refused",
        "the error code",
        {
            "code": "the error code, always",
            "key": "the node or address whose requests were refused, always",
            "minute": "the Unix minute, always",
            "count": "number of refusals in that minute, always",
        },
    ),
)
# Exactly one record per accepted event; the seq of the record is the seq of the event.
_EVENTS = (
    RecordType(
        "event.accepted",
        "the event id",
        {
            "kind": "the event's kind, always",
            "size": "bytes of its canonical form, always",
            "mirrored_by": "the node that brought it from another relay",
            "fence": "the resource of the fence of a mirrored event",
        },
    ),
    RecordType(
        "message.accepted",
        "the event id",
        {
            "size": "bytes of the event's canonical form, always",
            "client_message_id": "the sender's id of the message, always",
            "fingerprint": "hex of the accept fingerprint, always",
            "destination_kind": "topic or dm, always",
            "destination_ref": "the topic, or the recipient's key in hex and, after a slash, its agent; always",
            "recipients": "node ids whose delivery this record opens, always",
            "blocked": "node ids that block the sender; their delivery is opened as blocked",
            "not_queued": "recipients left out, each {recipient, reason}",
            "mentions": "mentioned node ids",
            "reply_to": "the event id of the message that this one replies to",
            "from_agent": "the sender's agent, unless the host itself sent it",
            "redirected": "true if the recipient is the successor of the key that the message names",
        },
    ),
    RecordType(
        "confirmation.accepted",
        "the event id",
        {
            "size": "bytes of the event's canonical form, always",
            "ids": "the message ids that the confirmation closes, always",
            "sender": "the node id of their sender, always",
        },
    ),
)
_IDS = "the message ids, always"
# actor is the reader; each opened delivery has exactly one outcome.
_DELIVERIES = (
    # One record per batch, written with the next commit: no caller waits for it.
    RecordType(
        "delivery.sent",
        "the reader's node id",
        {
            "ids": _IDS,
            "was_stored": "for each id, true if it came from the queue, always",
            "attempts": "for each id, the number of the attempt, always",
        },
    ),
    RecordType(
        "delivery.confirmed",
        "the reader's node id",
        {
            "ids": _IDS,
            "was_stored": "for each id, true if it came from the queue, always",
            "confirmation": "the event id of the confirmation, always; in the mesh pinch the Pinch message id, "
            "or empty if the answer to a ping proved that it was read",
        },
    ),
    # after delivery.confirmed, or without it; it ends nothing
    RecordType(
        "delivery.receipt",
        "the reader's node id",
        {
            "ids": _IDS,
            "states": "for each id, read or rejected, always",
            "at_ms": "for each id, the time by the clock of the reader's host, always",
            "receipt": "the event id of the receipt, always",
            "agent": "the agent of the reader's host, unless it is the default inbox",
        },
    ),
    RecordType("delivery.rejected", "the message id", {"reason": "the reason that the reader gave, always"}),
    RecordType("delivery.expired", "the reader's node id", {"ids": _IDS}),
    RecordType(
        "delivery.dead",
        "the message id",
        {"attempts": "number of attempts, always", "reason": "the limit that it reached, always"},
    ),
    RecordType(
        "delivery.requeued",
        "the message id",
        {"recipient": "the reader's node id, always; actor is the operator", "from_state": "the state before, always"}
        | VIA,
    ),
    RecordType(
        "delivery.purged",
        "the reader's node id",
        {"ids": _IDS, "recipient": "the reader's node id, always; actor is the operator"} | VIA,
    ),
    # it ends nothing: the delivery continues under the successor
    RecordType(
        "delivery.moved",
        "the node id of the successor",
        {
            "ids": _IDS,
            "states": "for each id, the state of its delivery, always",
            "senders": "for each id, the node id of its sender and, after a slash, the sender's agent",
            "agents": "for each id, the agent of the reader that it is for; empty for the default inbox",
            "recipient": "the node id of the former reader, always",
        },
    ),
    RecordType(
        "delivery.blocked", "the reader's node id", {"ids": _IDS, "sender": "the node id of the blocked sender, always"}
    ),
)
_GRANT = {
    "owner": "the node id of the holder, always",
    "token": "the fencing token, always",
    "lease_ms": "the length of the lease, always",
    "run_id": "the run of the relay that decided, always",
    "granted_boot_ns": "boot time of the grant, always",
    "deadline_boot_ns": "boot time at which the lease ends, always",
}
_SCOPE = {
    "session": "the session of the node, unless it is empty",
    "tree": "true if the lock also covers all names below",
    "shared": "true if the lock is shared",
}
_REQUEST = {"request_id": "the caller's id of the request", "wait_ms": "time that the caller waited"}
_LEASE_END = {
    "owner": "the node id of the former holder, always",
    "session": "its session, unless it is empty",
    "token": "the fencing token it held, always",
    "run_id": "the run of the relay that decided, always",
    "boot_ns": "boot time of the end, always",
}
# boot_ns values compare only within one run_id; replay from the last snapshot gives the table of locks.
_LOCKS = (
    RecordType(
        "lock.run_started",
        "the run id",
        {
            "run_id": "the run that starts, always",
            "boot_id": "the boot it runs in, always",
            "boot_ns": "boot time of the start, always",
            "reopened": "number of leases that may be active and so got their full length again, always",
            "token_counter": "the counter of fencing tokens; later grants are above it, always since version 2",
            "over_before_ns": "boot time of the former run; leases with an earlier deadline stay over, 0 if unknown",
            "void_token": "after a restore: the token that replaces those of all unreleased leases",
            "token_leap": "in version 1, after a restore: the increment of every token",
        },
        version=2,
    ),
    RecordType("lock.acquired", "the resource", _GRANT | _SCOPE | _REQUEST),
    RecordType("lock.renewed", "the resource", _GRANT | _SCOPE),
    RecordType("lock.released", "the resource", _LEASE_END),
    RecordType("lock.expired", "the resource; its lease had ended before a grant that overlaps it", _LEASE_END),
    RecordType("lock.broken", "the resource; actor is the admin that ended the lease", _LEASE_END | VIA),
    RecordType(
        "lock.taken_over",
        "the resource",
        _GRANT
        | _SCOPE
        | _REQUEST
        | {
            "former_owner": "the node id whose lease had ended, always",
            "former_session": "its session, unless it is empty",
            "former_token": "the token it held, always",
            "former_deadline_boot_ns": "boot time at which its lease ended, always",
        },
    ),
)
_ACCESS = {"read": "allow or deny", "write": "allow or deny", "lock": "allow or deny"}
_FENCE_RULE = {"kind": "the kind of the events, always", "d_prefix": "the beginning of their d tag, always"}
# actor is the node that made the change.
_MESHES = (
    RecordType("mesh.created", "the mesh", {"open": "true if every authenticated key is a member, always"}),
    RecordType("mesh.suspended", "the mesh; no node may use it"),
    RecordType("mesh.resumed", "the mesh"),
    RecordType("mesh.deleted", "the mesh; everything that belongs to it is gone"),
    RecordType(
        "mesh.limits_set",
        "the mesh",
        {
            "source": "mesh for its own limits, relay for those that the relay's admins allow; always",
            "limits": "the whole set of limits, without those that are not set; always",
        },
    ),
    RecordType("mesh.changed", "the mesh", {"open": "true if every authenticated key is a member, always"}),
    RecordType("mesh.approval_set", "the mesh", {"required": "true if an admin approves new keys of members, always"}),
    RecordType(
        "mesh.invited",
        "the id of the invite, never its code",
        {
            "role": "the role of a member who joins with it, always",
            "uses": "maximum number of uses, always",
            "expires_at_ns": "time at which it expires, always",
        },
    ),
    RecordType(
        "mesh.invite_revoked",
        "the id of the invite",
        {
            "reason": "revoked, or why its creator may no longer invite: creator_left, creator_demoted, "
            "creator_revoked; always"
        },
    ),
    RecordType("mesh.access_set", "the node id, or * for all", _ACCESS),
    RecordType("mesh.access_removed", "the node id, or * for all"),
    RecordType(
        "mesh.fence_rule_set",
        "the mesh",
        _FENCE_RULE | {"resource": "the resource whose fence the events need, always"},
    ),
    RecordType("mesh.fence_rule_removed", "the mesh", _FENCE_RULE),
    RecordType(
        "member.joined",
        "the node id",
        {"name": "its name in the mesh, always", "role": "its role, always", "invite": "the id of the invite it used"},
    ),
    RecordType("member.changed", "the node id", {"name": "its name in the mesh, always", "role": "its role, always"}),
    RecordType("member.left", "the node id"),
    RecordType(
        "member.rotated",
        "the node id; everything that it had in the mesh now belongs to its successor",
        {"successor": "the node id of the successor, always"},
    ),
    RecordType(
        "member.held",
        "the node id of a member's new key; it has no right in the mesh until an admin approves it",
        {"former": "the last key of the member that was approved or needed no approval, always"},
    ),
    RecordType("member.approved", "the node id of the new key; it has the rights of its member from now on"),
    RecordType("member.refused", "the node id of the new key; records of its access and its removal follow"),
    RecordType("member.revoked", "the node id; it no longer has any rights in the mesh"),
    # of no mesh; after the records of the meshes that it changes
    RecordType(
        "key.retired",
        "the node id; actor is the key itself, its recovery key, or an admin of the relay",
        {
            "reason": "rotated, recovered, replaced or revoked; always",
            "successor": "the node id that takes its place",
            "suspect_from_ns": "events that the key signed from then on are marked",
            "suspect_after_seq": "events that the relay accepted from the key after this seq are marked",
        },
    ),
    RecordType("member.subscribed", "the node id", {"pattern": "the pattern of topics, always"}),
    RecordType("member.unsubscribed", "the node id", {"pattern": "the pattern of topics, always"}),
    RecordType("member.blocked", "the node id that actor blocks"),
    RecordType("member.unblocked", "the node id that actor unblocks"),
    RecordType(
        "webhook.added",
        "the id of the webhook",
        {"url_host": "the host, or mail domain, of its receiver, always", "preset": "what it sends, always"},
    ),
    RecordType("webhook.removed", "the id of the webhook"),
    RecordType(
        "webhook.parked",
        "the id of the webhook",
        {"seq": "the seq of the event that its receiver refused, always", "reason": "the last answer, always"},
    ),
    RecordType("webhook.suspended", "the id of the webhook", {"reason": "the last failure, always"}),
    RecordType("webhook.ended", "the id of the webhook", {"reason": "the answer that ended it, always"}),
    RecordType("webhook.resumed", "the id of the webhook", {"cursor": "the seq after which it continues, always"}),
    RecordType("webhook.replayed", "the id of the webhook", {"cursor": "the seq after which it sends again, always"}),
    RecordType(
        "webhook.in_added",
        "the id of the incoming hook",
        {
            "node": "the node id of the hook, always",
            "name": "its name in the mesh, always",
            "destination": "where its messages go: #topic or a node id, always",
        },
    ),
    RecordType("webhook.in_removed", "the id of the incoming hook"),
    RecordType("topic.created", "the topic"),
    RecordType("topic.removed", "the topic"),
)
_PINCH = (
    RecordType(
        "pinch.accepted",
        "the Pinch message id, empty for an envelope without one",
        {
            "recipient": "the Pinch address of the recipient, always",
            "message_type": "the number of its MessageType, always",
            "size": "bytes of the envelope, always",
            "id": "the id of its delivery in the queue and in delivery records, always",
            "blocked": "true if the recipient blocks the sender; the envelope is then not delivered",
        },
    ),
    RecordType(
        "pinch.confirmed",
        "the Pinch message id",
        {
            "sender": "the Pinch address that sent the message, always",
            "signature": "hex of the confirm's signature, always",
            "timestamp": "the signed time, always",
            "state": "the state in the confirm, always",
            "was_stored": "true if it came from the queue, always",
        },
    ),
    RecordType(
        "pinch.blocked",
        "the Pinch address that is blocked",
        {"blocked": "false if the block was lifted, always", "dropped": "ids of queued messages deleted by the block"},
    ),
)


def types_by_name(declared: Iterable[RecordType]) -> MappingProxyType[str, RecordType]:
    """Return the types by name; raise ValueError if a name is declared twice."""
    types: dict[str, RecordType] = {}
    for record_type in declared:
        if record_type.name in types:
            raise ValueError(f"the record type {record_type.name} is declared twice")
        types[record_type.name] = record_type
    return MappingProxyType(types)


RECORD_TYPES = types_by_name((*_STORE, *_EVENTS, *_DELIVERIES, *_LOCKS, *_MESHES, *BUS, *DAEMON, *_PINCH))
#: The types with content.
CONTENT_TYPES = tuple(name for name, declared in RECORD_TYPES.items() if declared.content)


def without_content(type_: str, body: str) -> str:
    """Return the body of a record with its content emptied; the same text if nothing is left to erase."""
    if type_ not in CONTENT_TYPES:
        return body
    decoded = msgspec.json.decode(body)
    is_changed = False
    for path in RECORD_TYPES[type_].content:
        *parents, name = path.split(".")
        holder = decoded
        for each in parents:
            holder = holder.get(each) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and holder.get(name):
            holder[name] = "" if isinstance(holder[name], str) else None
            is_changed = True
    return msgspec.json.encode(decoded).decode() if is_changed else body
