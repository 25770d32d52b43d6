"""The steps of one message through bus, outbox, relay and inbox, as daemon and relay report them; pure, no I/O.

Steps are sorted by time; a step without a time has not finished and is last. Times are those of the machine that
recorded the step, and clocks of different machines may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.node import NODE_SCHEME

_SHOWN_DIGITS = 8  # of a node without a name


class Step(NamedTuple):
    """Something that happened to a message."""

    #: bus, outbox, relay or inbox
    where: str
    what: str
    at_ns: int | None

    def value(self, first_ns: int | None) -> dict[str, Any]:
        """Return the step as JSON values, with the time since the first step."""
        since = None if self.at_ns is None or first_ns is None else round((self.at_ns - first_ns) / 1e6, 3)
        at = None if self.at_ns is None else format_utc(self.at_ns)
        return {"where": self.where, "what": self.what, "at": at, "after_ms": since}


def in_order(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Return the steps as JSON values, sorted by time."""
    ordered = sorted(steps, key=lambda step: (step.at_ns is None, step.at_ns or 0))
    first_ns = ordered[0].at_ns if ordered else None
    return [step.value(first_ns) for step in ordered]


def outbox_steps(row: Mapping[str, Any]) -> Iterator[Step]:
    """Yield the steps that the outbox recorded."""
    yield Step("outbox", "accepted", parse_utc(row["enqueued_at"]))
    status, error, attempts = row["status"], row.get("last_error"), row["attempts"]
    reason = f" ({error})" if error else ""
    if row.get("delivered_at"):
        yield Step(
            "outbox", f"done after {attempts} attempt{'s' if attempts > 1 else ''}", parse_utc(row["delivered_at"])
        )
    elif row.get("aborted_at"):
        successor = f", superseded by {row['superseded_by']}" if row.get("superseded_by") else ""
        yield Step("outbox", f"aborted by {row.get('aborted_by')}{successor}", parse_utc(row["aborted_at"]))
    else:
        yield Step("outbox", f"{status} after {attempts} attempts{reason}", None)
    if row.get("history_id") is None:  # between agents of this host: the outbox knows the whole way
        for what in ("confirmed", "read", "rejected"):
            if row.get(f"{what}_at"):
                yield Step("outbox", f"{what} by {row['to_agent'] or 'the host'}", parse_utc(row[f"{what}_at"]))


def relay_steps(states: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Step]:
    """Yield the steps that the relay recorded, per recipient."""
    yield Step("relay", f"stored as seq {states['seq']}", states["first_seen_at_ns"])
    for delivery in states["deliveries"]:
        recipient = names.get(delivery["recipient"], _short(delivery["recipient"]))
        yield Step("relay", f"queued for {recipient}", delivery["queued_at_ns"])
        if delivery["sent_at_ns"] is not None:
            yield Step("relay", f"sent to {recipient}", delivery["sent_at_ns"])
        if delivery["closed_at_ns"] is not None:
            reason = f" ({delivery['reason']})" if delivery.get("reason") else ""
            yield Step("relay", f"{delivery['state']} by {recipient}{reason}", delivery["closed_at_ns"])
        if delivery.get("receipt"):
            reason = f" ({delivery['receipt_reason']})" if delivery.get("receipt_reason") else ""
            at_ns = delivery["receipt_at_ms"] * MILLISECOND_NS
            yield Step("relay", f"{delivery['receipt']} at {recipient}{reason}", at_ns)


def inbox_steps(item: Mapping[str, Any]) -> Iterator[Step]:
    """Yield the steps that the inbox of this host recorded."""
    label = " (undecryptable)" if item.get("undecryptable") else ""
    yield Step("inbox", f"received{label}", parse_utc(item["received_at"]))
    if item.get("seen_at"):
        yield Step("inbox", "seen", parse_utc(item["seen_at"]))


def _short(node: str) -> str:
    return node.removeprefix(f"{NODE_SCHEME}:")[:_SHOWN_DIGITS]
