"""The steps of one message, from what outbox, relay, inbox and bus tell of it.

Pure: their answers in, steps in the order of time out. A step without a time is one that is not over, and stands last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from posthouse.model.timestamps import format_utc, parse_utc


class Step(NamedTuple):
    """Something that happened to a message."""

    #: bus, outbox, relay or inbox
    where: str
    what: str
    at_ns: int | None

    def value(self, first_ns: int | None) -> dict[str, Any]:
        """Return it for programs, with the time since the first step."""
        since = None if self.at_ns is None or first_ns is None else round((self.at_ns - first_ns) / 1e6, 3)
        at = None if self.at_ns is None else format_utc(self.at_ns)
        return {"where": self.where, "what": self.what, "at": at, "after_ms": since}


def in_order(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Return the steps for programs, in the order of time."""
    ordered = sorted(steps, key=lambda step: (step.at_ns is None, step.at_ns or 0))
    first_ns = ordered[0].at_ns if ordered else None
    return [step.value(first_ns) for step in ordered]


def outbox_steps(row: Mapping[str, Any]) -> Iterator[Step]:
    """Yield what the outbox knows."""
    yield Step("outbox", "accepted", parse_utc(row["enqueued_at"]))
    status, error, attempts = row["status"], row.get("last_error"), row["attempts"]
    reason = f" ({error})" if error else ""
    if row.get("delivered_at"):
        yield Step("outbox", f"done after {attempts} attempt{'s' if attempts > 1 else ''}", _ns(row["delivered_at"]))
    elif row.get("aborted_at"):
        successor = f", superseded by {row['superseded_by']}" if row.get("superseded_by") else ""
        yield Step("outbox", f"aborted by {row.get('aborted_by')}{successor}", _ns(row["aborted_at"]))
    else:
        yield Step("outbox", f"{status} after {attempts} attempts{reason}", None)


def relay_steps(states: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Step]:
    """Yield what the relay knows, per recipient."""
    yield Step("relay", f"stored as seq {states['seq']}", states["first_seen_at_ns"])
    for delivery in states["deliveries"]:
        who = names.get(delivery["recipient"], delivery["recipient"].removeprefix("ed25519:")[:8])
        yield Step("relay", f"queued for {who}", delivery["queued_at_ns"])
        if delivery["sent_at_ns"] is not None:
            yield Step("relay", f"sent to {who}", delivery["sent_at_ns"])
        if delivery["closed_at_ns"] is not None:
            reason = f" ({delivery['reason']})" if delivery.get("reason") else ""
            yield Step("relay", f"{delivery['state']} by {who}{reason}", delivery["closed_at_ns"])


def inbox_steps(item: Mapping[str, Any]) -> Iterator[Step]:
    """Yield what the inbox of this host knows."""
    label = " (undecryptable)" if item.get("undecryptable") else ""
    yield Step("inbox", f"received{label}", parse_utc(item["received_at"]))
    if item.get("seen_at"):
        yield Step("inbox", "seen", _ns(item["seen_at"]))


def _ns(text: str) -> int:
    return parse_utc(text)
