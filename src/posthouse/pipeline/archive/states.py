"""Where a message went, out of its records: the answer that a relay gives for one it still has.

Pure: records in, the states of its deliveries out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posthouse.journal.record import Record

_ENDS_MANY = {
    "delivery.confirmed": "confirmed",
    "delivery.expired": "expired",
    "delivery.purged": "purged",
    "delivery.blocked": "blocked",
}
_PARKS = {"delivery.rejected": "rejected", "delivery.dead": "dead"}


def message_states(message_id: str, records: Sequence[Record]) -> dict[str, Any] | None:
    """Return the message with its deliveries; None when no record accepts it."""
    accepted = next((each for each in records if each.type == "message.accepted" and each.ref == message_id), None)
    if accepted is None:
        return None
    body = accepted.decoded_body()
    found = {node: _opened(node, accepted.at_ns, "queued") for node in body["recipients"]}
    for node in body.get("blocked", ()):
        found[node] = _opened(node, accepted.at_ns, "blocked") | {"closed_at_ns": accepted.at_ns}
    for record in records:
        _take(found, message_id, record)
    return {
        "id": message_id,
        "seq": accepted.seq,
        "mesh": accepted.mesh,
        "sender": accepted.actor,
        "client_message_id": body["client_message_id"],
        "destination_kind": body["destination_kind"],
        "destination_ref": body["destination_ref"],
        "first_seen_at_ns": accepted.at_ns,
        "history_available": False,
        "mentions": body.get("mentions", []),
        "deliveries": [found[node] for node in sorted(found)],
    }


def _opened(node: str, at_ns: int, state: str) -> dict[str, Any]:
    return {
        "recipient": node,
        "state": state,
        "was_stored": None,
        "attempts": 0,
        "queued_at_ns": at_ns,
        "sent_at_ns": None,
        "closed_at_ns": None,
        "reason": None,
    }


def _take(found: dict[str, dict[str, Any]], message_id: str, record: Record) -> None:
    body = record.decoded_body()
    if record.type == "delivery.sent" and message_id in body["ids"]:
        _sent(found.get(str(record.actor)), body, body["ids"].index(message_id), record.at_ns)
    elif record.type in _ENDS_MANY and message_id in body["ids"]:
        _close(found.get(str(record.ref)), _ENDS_MANY[record.type], record.at_ns)
    elif record.type in _PARKS and record.ref == message_id:
        _close(found.get(str(record.actor)), _PARKS[record.type], record.at_ns, body.get("reason"))
    elif record.type == "delivery.requeued" and record.ref == message_id:
        delivery = found.get(body["recipient"])
        if delivery is not None:
            delivery.update(state="queued", queued_at_ns=record.at_ns, closed_at_ns=None, reason=None)


def _sent(delivery: dict[str, Any] | None, body: dict[str, Any], at: int, at_ns: int) -> None:
    if delivery is None:
        return
    delivery["attempts"] = body["attempts"][at]
    if delivery["sent_at_ns"] is None:
        delivery.update(sent_at_ns=at_ns, was_stored=body["was_stored"][at])
    if delivery["state"] == "queued":  # it may have ended while it was on its way
        delivery["state"] = "sent"


def _close(delivery: dict[str, Any] | None, state: str, at_ns: int, reason: str | None = None) -> None:
    if delivery is not None:
        delivery.update(state=state, closed_at_ns=at_ns, reason=reason)
