"""Every corruption the audit has to find, by name: a change to a clean history, and the code that must be reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from posthouse.keys import NodeKey
from posthouse.model.event import canonical_event_bytes, event_id
from posthouse.pipeline.audit.stores import Histories
from tests.pipeline.audit.activity import WRITER, fence
from tests.pipeline.audit.planting import (
    Body,
    content_of,
    find,
    find_event,
    remove_record,
    replace_body,
    replace_event,
    replace_record,
    sign_again,
    token_of,
)


class Corruption(NamedTuple):
    """One falsification of a history."""

    plant: Callable[[Histories], Histories]
    code: str


def _has_readers(body: Body) -> bool:
    return body["destination_kind"] == "topic" and len(body["recipients"]) > 1


def _is_direct(body: Body) -> bool:
    return body["destination_kind"] == "dm" and bool(body["recipients"])


def flip_byte(given: Histories) -> Histories:
    event = content_of(given, find(given, "message.accepted"))
    content = json.loads(str(event.event))["content"]
    return replace_event(given, event, content=chr(ord(content[0]) ^ 1) + content[1:])


def forge_signature(given: Histories) -> Histories:
    event = content_of(given, find(given, "message.accepted"))
    fields = json.loads(str(event.event))
    canonical = canonical_event_bytes(
        *(fields[name] for name in ("pubkey", "created_at_ns", "kind", "tags", "content"))
    )
    return replace_event(given, event, sig=NodeKey.generate().sign(canonical).hex())


def forge_author(given: Histories) -> Histories:
    """Sign with another key and a matching id: only the record still names the author."""
    row = find(given, "event.accepted")
    event = content_of(given, row)
    fields, key = json.loads(str(event.event)), NodeKey.generate()
    fields["pubkey"] = key.node
    canonical = canonical_event_bytes(
        *(fields[name] for name in ("pubkey", "created_at_ns", "kind", "tags", "content"))
    )
    return replace_event(given, event, pubkey=key.node, id=event_id(canonical), sig=key.sign(canonical).hex())


def wrong_id(given: Histories) -> Histories:
    event = content_of(given, find(given, "message.accepted"))
    return replace_event(given, event, id="0" * 64)


def missing_delivery(given: Histories) -> Histories:
    row = find(given, "message.accepted", _has_readers)
    return replace_body(given, row, recipients=json.loads(row.body)["recipients"][1:])


def missing_direct_delivery(given: Histories) -> Histories:
    return replace_body(given, find(given, "message.accepted", _is_direct), recipients=[])


def delivery_to_a_stranger(given: Histories) -> Histories:
    row = find(given, "message.accepted", _has_readers)
    stranger = NodeKey.generate().node
    return replace_body(given, row, recipients=[*json.loads(row.body)["recipients"], stranger])


def orphan_record(given: Histories) -> Histories:
    row = find(given, "message.accepted")
    return given._replace(events=[each for each in given.events if each != content_of(given, row)])


def event_without_record(given: Histories) -> Histories:
    row = find(given, "event.accepted")
    return replace_record(given, row, type="topic.created", body="{}")


def gap(given: Histories) -> Histories:
    row = find(given, "delivery.sent")
    return given._replace(journal=[each for each in given.journal if each != row])


def erased_outcome(given: Histories) -> Histories:
    return remove_record(given, find(given, "delivery.confirmed"))


def second_outcome(given: Histories) -> Histories:
    confirmed = find(given, "delivery.confirmed")
    sent = [row for row in given.journal if row.type == "delivery.sent" and row.epoch == confirmed.epoch][-1]
    body = json.dumps({"ids": json.loads(confirmed.body)["ids"]})
    return replace_record(given, sent, type="delivery.expired", ref=confirmed.ref, actor=confirmed.ref, body=body)


def falling_token(given: Histories) -> Histories:
    row = find(given, "lock.taken_over", lambda body: body["token"] > 2)
    return replace_body(given, row, token=1)


def repeated_token(given: Histories) -> Histories:
    row = find(given, "lock.acquired", lambda body: body["token"] > 2)
    return replace_body(given, row, token=json.loads(row.body)["token"] - 1)


def overlapping_leases(given: Histories) -> Histories:
    row = find(given, "lock.taken_over")
    body = json.loads(row.body)
    granted = body["former_deadline_boot_ns"] - 10**6
    return replace_body(given, row, granted_boot_ns=granted, deadline_boot_ns=granted + body["lease_ms"] * 10**6)


def forged_release(given: Histories) -> Histories:
    return replace_body(given, find(given, "lock.released"), owner=NodeKey.generate().node)


def stale_fence(given: Histories) -> Histories:
    """Let the former holder have written with its old token, rightly signed."""
    first, late = find_event(given, "first"), find_event(given, "late")
    return sign_again(given, late, WRITER, ("d", "late"), fence(token_of(first)))


def foreign_fence(given: Histories) -> Histories:
    """Let a node write with the token that another node holds."""
    second, late = find_event(given, "second"), find_event(given, "late")
    return sign_again(given, late, WRITER, ("d", "late"), fence(token_of(second)))


def fence_after_release(given: Histories) -> Histories:
    """Let a node write after the lock was released."""
    first, after = find_event(given, "first"), find_event(given, "after all")
    return sign_again(given, after, WRITER, ("d", "after"), fence(token_of(first)))


def second_strict_write(given: Histories) -> Histories:
    """Let one grant have made two writes of a page that allows one."""
    first, draft = find_event(given, "first"), find_event(given, "draft")
    return sign_again(given, draft, WRITER, ("d", "page"), fence(token_of(first), "strict"))


def forged_pinch_confirm(given: Histories) -> Histories:
    row = find(given, "pinch.confirmed")
    signature = json.loads(row.body)["signature"]
    return replace_body(given, row, signature=f"{int(signature[0], 16) ^ 1:x}{signature[1:]}")


def moved_pinch_confirm(given: Histories) -> Histories:
    row = find(given, "pinch.confirmed")
    return replace_body(given, row, timestamp=json.loads(row.body)["timestamp"] + 1)


def foreign_pinch_confirm(given: Histories) -> Histories:
    """Let a reader confirm to a node that never wrote to it; the signature does not cover the sender."""
    row = find(given, "pinch.confirmed")
    return replace_body(given, row, sender=row.actor)


def broken_chain(given: Histories) -> Histories:
    row = find(given, "outbox.aborted", lambda body: "superseded_by" in body)
    return replace_body(given, row, superseded_by="01ARZ3NDEKTSV4RRFFQ69G5FAV")


def forked_chain(given: Histories) -> Histories:
    """Let two rows name one successor."""
    first = find(given, "outbox.aborted", lambda body: "superseded_by" in body)
    second = find(given, "outbox.aborted", lambda body: "superseded_by" in body, skip=1)
    return replace_body(given, second, superseded_by=json.loads(first.body)["superseded_by"])


def sent_from_nowhere(given: Histories) -> Histories:
    return replace_record(given, find(given, "outbox.done"), ref="01ARZ3NDEKTSV4RRFFQ69G5FAV")


def received_again(given: Histories) -> Histories:
    first, second = find(given, "inbox.received"), find(given, "inbox.received", skip=1)
    return replace_record(given, second, actor=first.actor, body=first.body)


def lost_on_the_way(given: Histories) -> Histories:
    """Let the outbox say that a message is done which the relay never had."""
    return replace_body(given, find(given, "outbox.done"), message_id="0" * 64)


def other_sender(given: Histories) -> Histories:
    at_relay = {row.ref for row in given.journal if row.type == "message.accepted"}  # notices of a daemon are not
    received = find(given, "inbox.received", lambda body: body["message_id"] in at_relay)
    return replace_record(given, received, actor=NodeKey.generate().node)


def handled_from_nowhere(given: Histories) -> Histories:
    return replace_record(given, find(given, "bus.handled"), ref="01ARZ3NDEKTSV4RRFFQ69G5FAV")


def forged_envelope(given: Histories) -> Histories:
    row = find(given, "bus.published")
    envelope = json.loads(row.body)["envelope"] | {"from": "relay.agent.mallory"}
    return replace_body(given, row, envelope=envelope)


def reused_client_id(given: Histories) -> Histories:
    first = find(given, "message.accepted")
    second = next(row for row in given.journal if row.type == first.type and row.actor == first.actor and row != first)
    return replace_body(given, second, client_message_id=json.loads(first.body)["client_message_id"])


def edited_record(given: Histories) -> Histories:
    return replace_body(given, find(given, "message.accepted"), fingerprint="0" * 64)


def foreign_confirmation(given: Histories) -> Histories:
    return replace_body(given, find(given, "delivery.confirmed"), ids=["0" * 64])


def event_again(given: Histories) -> Histories:
    first, second = find(given, "event.accepted"), find(given, "event.accepted", skip=1)
    return replace_record(given, second, ref=first.ref)


def unknown_type(given: Histories) -> Histories:
    return replace_record(given, find(given, "delivery.sent"), type="delivery.lost")


def broken_body(given: Histories) -> Histories:
    return replace_record(given, find(given, "delivery.sent"), body='{"ids":[')


def body_of_other_types(given: Histories) -> Histories:
    """Keep the fields of a body, but not the types of their values."""
    return replace_body(given, find(given, "lock.acquired"), token="one")


def time_back(given: Histories) -> Histories:
    return replace_record(given, find(given, "delivery.sent", skip=3), at_ns=1)


CORRUPTIONS = {
    "flipped byte": Corruption(flip_byte, "event_id_wrong"),
    "forged signature": Corruption(forge_signature, "signature_invalid"),
    "forged author": Corruption(forge_author, "event_disagrees"),
    "wrong id": Corruption(wrong_id, "event_id_wrong"),
    "missing delivery": Corruption(missing_delivery, "delivery_missing"),
    "missing direct delivery": Corruption(missing_direct_delivery, "delivery_missing"),
    "delivery to a stranger": Corruption(delivery_to_a_stranger, "delivery_unexpected"),
    "orphan record": Corruption(orphan_record, "event_missing"),
    "event without record": Corruption(event_without_record, "record_missing"),
    "gap": Corruption(gap, "seq_gap"),
    "erased outcome": Corruption(erased_outcome, "confirmation_disagrees"),
    "second outcome": Corruption(second_outcome, "delivery_outcome_twice"),
    "falling token": Corruption(falling_token, "token_not_growing"),
    "repeated token": Corruption(repeated_token, "token_granted_twice"),
    "overlapping leases": Corruption(overlapping_leases, "lease_overlap"),
    "forged release": Corruption(forged_release, "lock_record_wrong"),
    "stale fence": Corruption(stale_fence, "fence_violated"),
    "foreign fence": Corruption(foreign_fence, "fence_violated"),
    "fence after release": Corruption(fence_after_release, "fence_violated"),
    "second strict write": Corruption(second_strict_write, "fence_violated"),
    "forged Pinch confirm": Corruption(forged_pinch_confirm, "pinch_signature_invalid"),
    "moved Pinch confirm": Corruption(moved_pinch_confirm, "pinch_signature_invalid"),
    "foreign Pinch confirm": Corruption(foreign_pinch_confirm, "pinch_unknown"),
    "broken chain": Corruption(broken_chain, "chain_broken"),
    "forked chain": Corruption(forked_chain, "chain_broken"),
    "sent from nowhere": Corruption(sent_from_nowhere, "outbox_unknown"),
    "received again": Corruption(received_again, "inbox_twice"),
    "lost on the way": Corruption(lost_on_the_way, "stores_disagree"),
    "other sender": Corruption(other_sender, "stores_disagree"),
    "handled from nowhere": Corruption(handled_from_nowhere, "bus_unknown"),
    "forged envelope": Corruption(forged_envelope, "bus_disagrees"),
    "reused client id": Corruption(reused_client_id, "message_id_reused"),
    "edited record": Corruption(edited_record, "event_disagrees"),
    "foreign confirmation": Corruption(foreign_confirmation, "confirmation_disagrees"),
    "event again": Corruption(event_again, "event_twice"),
    "unknown type": Corruption(unknown_type, "record_type_unknown"),
    "broken body": Corruption(broken_body, "record_body_invalid"),
    "body of other types": Corruption(body_of_other_types, "record_body_invalid"),
    "time back": Corruption(time_back, "time_back"),
}
