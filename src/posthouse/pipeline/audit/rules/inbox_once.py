"""The inbox: a message is received once, and seen only after that."""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.model.limits import DAY_S, RECORD_RETENTION_MIN_DAYS, SECOND_NS
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step

_LEAST_NS = RECORD_RETENTION_MIN_DAYS * DAY_S * SECOND_NS  # within it no relay delivers a message as a new one


def _by_row(entry: Entry) -> Iterator[Part]:
    if entry.type == "inbox.received":
        yield entry.ref, ["received"]
    else:
        for row_id in entry.body["ids"]:
            yield row_id, ["seen"]


def _by_message(entry: Entry) -> Iterator[Part]:
    yield f"{entry.actor}\x1f{entry.body['client_message_id']}", [entry.ref]


class InboxRowAuditor(Auditor):
    """One row of an inbox."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._is_there = False

    def take(self, step: Step) -> Iterator[Finding]:
        if step.part[0] == "received":
            if self._is_there:
                yield self.found("inbox_twice", step, self.key, "the row was received before")
            self._is_there = True
        elif not self._is_there and self.line.is_complete:
            yield self.found("inbox_unknown", step, self.key, "seen, but never received")


class InboxMessageAuditor(Auditor):
    """One message of one sender."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._last: Step | None = None

    def take(self, step: Step) -> Iterator[Finding]:
        last, self._last = self._last, step
        if last is not None and step.at_ns - last.at_ns < _LEAST_NS:
            yield self.found("inbox_twice", step, step.part[0], f"the message was received as {last.part[0]} before")


ROWS = Rule("inbox", frozenset({"inbox.received", "inbox.seen"}), _by_row, InboxRowAuditor)
MESSAGES = Rule("inbox_messages", frozenset({"inbox.received"}), _by_message, InboxMessageAuditor)
