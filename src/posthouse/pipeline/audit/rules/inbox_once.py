"""The inbox: a message is received once, and marked as seen only afterwards."""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.model.event import is_event_id
from posthouse.model.limits import DAY_S, RECORD_RETENTION_MIN_DAYS, SECOND_NS
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

#: Relays keep dedupe records at least this long, so no relay delivers a message as a new one within this time.
_MIN_RETENTION_NS = RECORD_RETENTION_MIN_DAYS * DAY_S * SECOND_NS


def _by_row(entry: Entry) -> Iterator[KeyedFact]:
    if entry.type == "inbox.received":
        yield entry.ref, "received"
    else:
        for row_id in entry.body["ids"]:
            if not is_event_id(row_id):  # older daemons recorded a message id if the reader passed one
                yield row_id, "seen"


def _by_message(entry: Entry) -> Iterator[KeyedFact]:
    if "conflicts_with" not in entry.body:  # the inbox found that the contents differ: another message
        sender = "/".join(filter(None, (entry.actor, entry.body.get("from_agent"))))
        yield f"{sender}\x1f{entry.body['client_message_id']}", entry.ref


class InboxRowAuditor(Auditor):
    """Check one row of an inbox; facts are `received` and `seen`."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._is_received = False

    def add_step(self, step: Step) -> Iterator[Finding]:
        if step.fact == "received":
            if self._is_received:
                yield self.finding("inbox_twice", step, self.key, "the row was already received")
            self._is_received = True
        elif not self._is_received and self.lineage.is_complete:
            yield self.finding("inbox_unknown", step, self.key, "seen, but never received")


class InboxMessageAuditor(Auditor):
    """Check one message of one sender; facts are row ids."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._last: Step | None = None

    def add_step(self, step: Step) -> Iterator[Finding]:
        last, self._last = self._last, step
        if last is not None and step.at_ns - last.at_ns < _MIN_RETENTION_NS:
            yield self.finding("inbox_twice", step, step.fact, f"the message was already received as {last.fact}")


ROWS = Rule("inbox", frozenset({"inbox.received", "inbox.seen"}), str, _by_row, InboxRowAuditor)
MESSAGES = Rule("inbox_messages", frozenset({"inbox.received"}), str, _by_message, InboxMessageAuditor)
