"""Identity: an event is accepted once; a sender's client_message_id stands for one message while its record lasts."""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.model.limits import DAY_S, RECORD_RETENTION_MIN_DAYS, SECOND_NS
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step

_ACCEPTED = frozenset({"event.accepted", "message.accepted", "confirmation.accepted"})
_LEAST_NS = RECORD_RETENTION_MIN_DAYS * DAY_S * SECOND_NS  # every record is kept that long


def _by_event(entry: Entry) -> Iterator[Part]:
    yield entry.ref, [entry.type]


def _by_client_id(entry: Entry) -> Iterator[Part]:
    yield f"{entry.mesh}\x1f{entry.actor}\x1f{entry.body['client_message_id']}", [entry.ref]


class EventAuditor(Auditor):
    """One event."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._seq = 0

    def take(self, step: Step) -> Iterator[Finding]:
        if self._seq:
            yield self.found("event_twice", step, self.key, f"it was accepted at {self._seq} before")
        self._seq = step.seq


class ClientIdAuditor(Auditor):
    """One client_message_id of one sender."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._last: Step | None = None

    def take(self, step: Step) -> Iterator[Finding]:
        last, self._last = self._last, step
        if last is not None and step.at_ns - last.at_ns < _LEAST_NS:
            client_id = self.key.rpartition("\x1f")[2]
            yield self.found("message_id_reused", step, step.part[0], f"{client_id!r} stood for {last.part[0]}")


ONCE = Rule("once", _ACCEPTED, _by_event, EventAuditor)
CLAIMS = Rule("claims", frozenset({"message.accepted"}), _by_client_id, ClientIdAuditor)
