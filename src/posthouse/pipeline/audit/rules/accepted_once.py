"""Accepted once: an event is accepted once, and a client_message_id names one message while its dedupe record lasts."""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.model.limits import DAY_S, RECORD_RETENTION_MIN_DAYS, SECOND_NS
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

_ACCEPTED = frozenset({"event.accepted", "message.accepted", "confirmation.accepted"})
#: The relay keeps every dedupe record at least this long.
_MIN_RETENTION_NS = RECORD_RETENTION_MIN_DAYS * DAY_S * SECOND_NS


def _by_event(entry: Entry) -> Iterator[KeyedFact]:
    yield entry.ref, entry.type


def _by_client_id(entry: Entry) -> Iterator[KeyedFact]:
    body = entry.body
    yield f"{entry.mesh}\x1f{entry.actor}\x1f{body.get('from_agent', '')}\x1f{body['client_message_id']}", entry.ref


class EventAuditor(Auditor):
    """Check that one event was accepted only once."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._seq = 0

    def add_step(self, step: Step) -> Iterator[Finding]:
        if self._seq:
            yield self.finding("event_twice", step, self.key, f"it was already accepted at {self._seq}")
        self._seq = step.seq


class ClientIdAuditor(Auditor):
    """Check one client_message_id of one sender and agent; facts are message ids."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._last: Step | None = None

    def add_step(self, step: Step) -> Iterator[Finding]:
        last, self._last = self._last, step
        if last is not None and step.at_ns - last.at_ns < _MIN_RETENTION_NS:
            client_id = self.key.rpartition("\x1f")[2]
            yield self.finding("message_id_reused", step, step.fact, f"{client_id!r} already names {last.fact}")


ONCE = Rule("once", _ACCEPTED, str, _by_event, EventAuditor)
CLAIMS = Rule("claims", frozenset({"message.accepted"}), str, _by_client_id, ClientIdAuditor)
