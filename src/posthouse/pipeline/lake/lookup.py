"""Find messages in the lake without Spark, for `trace` and `history`, after a relay has pruned them.

Rows that a restore dropped are ignored. The states of a message are computed from its records and returned in the form
in which a relay returns them. With a lower bound on the time, a lookup of states skips most files; without one it scans
the journal of all days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from posthouse.journal.digest import Record
from posthouse.model.event import MESSAGE, Event, decode_event
from posthouse.pipeline.connector.feeds import JOURNAL
from posthouse.pipeline.epochs import ALL_LOST, live_through
from posthouse.pipeline.lake.lake import BronzeScan, Lake, RowFilter
from posthouse.pipeline.tables.bronze import day_of

_ENDS_MANY = {
    "delivery.confirmed": "confirmed",
    "delivery.expired": "expired",
    "delivery.purged": "purged",
    "delivery.blocked": "blocked",
}
_PARKS = {"delivery.rejected": "rejected", "delivery.dead": "dead"}


def message_states(message_id: str, records: Sequence[Record]) -> dict[str, Any] | None:
    """Return the message with its deliveries; None if there is no record of its acceptance."""
    accepted = next((each for each in records if each.type == "message.accepted" and each.ref == message_id), None)
    if accepted is None:
        return None
    body = accepted.decoded_body()
    found = {node: _opened(node, accepted.at_ns, "queued") for node in body["recipients"]}
    for node in body.get("blocked", ()):
        found[node] = _opened(node, accepted.at_ns, "blocked") | {"closed_at_ns": accepted.at_ns}
    for record in records:
        _apply(found, message_id, record)
    return {
        "id": message_id,
        "seq": accepted.seq,
        "mesh": accepted.mesh,
        "sender": accepted.actor,
        "from_agent": body.get("from_agent", ""),
        "client_message_id": body["client_message_id"],
        "destination_kind": body["destination_kind"],
        "destination_ref": body["destination_ref"],
        "first_seen_at_ns": accepted.at_ns,
        "history_available": False,
        "mentions": body.get("mentions", []),
        "not_queued": body.get("not_queued", []),
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
        "receipt": None,
        "receipt_at_ms": None,
        "receipt_reason": None,
    }


def _apply(found: dict[str, dict[str, Any]], message_id: str, record: Record) -> None:
    body = record.decoded_body()
    if record.type == "delivery.sent" and message_id in body["ids"]:
        _sent(found.get(str(record.actor)), body, body["ids"].index(message_id), record.at_ns)
    elif record.type == "delivery.receipt" and message_id in body["ids"]:
        _receipt(found.get(str(record.ref)), body, body["ids"].index(message_id))
    elif record.type == "delivery.moved" and message_id in body["ids"] and body["recipient"] in found:
        found[str(record.ref)] = found.pop(body["recipient"]) | {"recipient": str(record.ref)}
    elif record.type in _ENDS_MANY and message_id in body["ids"]:
        _close(found.get(str(record.ref)), _ENDS_MANY[record.type], record.at_ns)
    elif record.type in _PARKS and record.ref == message_id:
        _close(found.get(str(record.actor)), _PARKS[record.type], record.at_ns, body.get("reason"))
    elif record.type == "delivery.requeued" and record.ref == message_id:
        delivery = found.get(body["recipient"])
        if delivery is not None:
            delivery.update(state="queued", queued_at_ns=record.at_ns, closed_at_ns=None, reason=None)


def _sent(delivery: dict[str, Any] | None, body: dict[str, Any], index: int, at_ns: int) -> None:
    if delivery is None:
        return
    delivery["attempts"] = body["attempts"][index]
    if delivery["sent_at_ns"] is None:
        delivery.update(sent_at_ns=at_ns, was_stored=body["was_stored"][index])
    if delivery["state"] == "queued":  # an end may overtake the sent record
        delivery["state"] = "sent"


def _receipt(delivery: dict[str, Any] | None, body: dict[str, Any], index: int) -> None:
    if delivery is not None:
        delivery.update(receipt=body["states"][index], receipt_at_ms=body["at_ms"][index])


def _close(delivery: dict[str, Any] | None, state: str, at_ns: int, reason: str | None = None) -> None:
    if delivery is not None:
        delivery.update(state=state, closed_at_ns=at_ns, reason=reason)


class Lookup:
    """Search the history of relays and buses in a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        epochs = lake.epochs()
        live = live_through(epochs)
        self._live = {each.epoch: live.get(each.epoch, ALL_LOST) for each in epochs if each.store == "relay"}
        self._bus = {each.epoch: live.get(each.epoch, ALL_LOST) for each in epochs if each.store == "bus"}

    def states(self, message_id: str, since_ns: int | None = None) -> dict[str, Any] | None:
        """Return a message and its deliveries in the relay's form; None if the lake does not hold it."""
        import pyarrow.compute as pc

        where = (pc.field("ref") == message_id) | pc.match_substring(pc.field("body"), message_id)
        records = self._records(
            RowFilter(first_day=None if since_ns is None else day_of(since_ns), where=where), self._live
        )
        return message_states(message_id, records)

    def bus_records(self, event_id: str, bus_id: str | None) -> list[Record]:
        """Return the bus records of a message that crossed the bridge, found by its bus id or else by its event id."""
        import pyarrow.compute as pc

        types = pc.field("type").isin(["bus.published", "bus.handled", "bus.failed", "bus.dead"])
        if bus_id is not None:
            return self._records(RowFilter(where=types & (pc.field("ref") == bus_id)), self._bus)
        mentions = types & pc.match_substring(pc.field("body"), event_id)
        refs = sorted({str(record.ref) for record in self._records(RowFilter(where=mentions), self._bus)})
        return self._records(RowFilter(where=types & pc.field("ref").isin(refs)), self._bus) if refs else []

    def messages(
        self, mesh: str, is_wanted: Callable[[Event], bool], text: str, *, before_seq: int | None, after_seq: int = 0
    ) -> Iterator[tuple[int, Event]]:
        """Yield the messages of a mesh whose JSON contains `text`, with their seq, newest first."""
        import pyarrow.compute as pc

        through = None if before_seq is None else before_seq - 1
        where = (pc.field("kind") == MESSAGE) & (pc.field("mesh") == mesh)
        where &= pc.match_substring(pc.field("event"), text)
        choice = RowFilter(after_seq=after_seq, through_seq=through, where=where)
        table = BronzeScan(self._lake, "bronze_events")
        seen: set[str] = set()
        for part in table.batches(choice, ("epoch", "seq", "event"), newest_first=True):
            rows = [row for row in part.to_pylist() if row["seq"] <= self._live.get(row["epoch"], ALL_LOST)]
            for row in sorted(rows, key=lambda row: -int(row["seq"])):
                event = decode_event(row["event"].encode())
                if event.id not in seen and is_wanted(event):
                    seen.add(event.id)
                    yield row["seq"], event

    def _records(self, choice: RowFilter, live: dict[str, int]) -> list[Record]:
        rows = BronzeScan(self._lake, "bronze_journal").rows(choice, ("epoch", *JOURNAL.columns))
        kept = [row for row in rows if row["seq"] <= live.get(row["epoch"], ALL_LOST)]
        return sorted(Record(*(row[name] for name in JOURNAL.columns)) for row in kept)
