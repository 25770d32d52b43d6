"""Refusals: which of them raise, which are logged, and how they are recorded.

A publish that reached no mailbox raises PublishRefused inside a handler, because a handler that overlooked the result
would end its own message as handled and the work would be gone. It does not raise where a dead letter keeps the
refused message (access, budget). Refusals are logged once per sender and minute, and recorded in aggregate (the first
one at once, then one record per minute), so that no sender can fill the log or the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from posthouse.bus.admission import TEMPORARY, Draft
from posthouse.bus.ledger import Ledger
from posthouse.bus.results import PublishResult, Reason, Rejection, publish_refused
from posthouse.bus.running import RUNNING
from posthouse.bus.transaction import BusTransaction
from posthouse.log import get_log
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS
from posthouse.model.subjects import is_pattern

log = get_log(__name__)
#: what publish does with a refusal; None: raise inside handlers, return in plain code
Refusals = Literal["raise", "return"]


def check_refusals(value: Refusals | None) -> None:
    """Raise value_invalid unless the value is one of Refusals, or None."""
    if value is not None and value not in get_args(Refusals):
        raise error("value_invalid", name="refusals", reason=f"{value!r} is not one of {', '.join(get_args(Refusals))}")


def result_or_raise(draft: Draft, result: PublishResult, refusals: Refusals | None) -> PublishResult:
    """Return the result of a publish, or raise PublishRefused if the message is in no mailbox and in no dead letter."""
    if result.delivered_to or not _is_lost(draft.subject, result.rejected):
        return result
    if refusals is None:
        refusals = "return" if RUNNING.get() is None else "raise"
    if refusals == "return":
        return result
    retry_ns = None if draft.retry_at_ns is None else max(0, draft.retry_at_ns - draft.reserved.boot_ns)
    raise publish_refused(draft.subject, result, None if retry_ns is None else retry_ns / SECOND_NS)


def _is_lost(subject: str, rejected: tuple[Rejection, ...]) -> bool:
    if not rejected:  # no endpoint matches: an unrouted literal is a dead letter, a fan-out should have matched one
        return is_pattern(subject)
    return any(rejection.reason in TEMPORARY for rejection in rejected)


_MAX_OCCURRENCES = 1_024  # per key and minute: about 30 KB
#: journal seq, boot time in ns, and how many refusals happened then; the record's field is `moments`
Occurrences = list[tuple[int, int, int]]


class RefusalKey(NamedTuple):
    """What refusals have in common that are recorded together."""

    reason: str
    sender: str
    subject: str
    endpoint_hash: str
    #: the publish was charged to the sender's rate and has no other record
    is_charged: bool
    #: the mailbox had room, but too many dead letters
    is_by_letters: bool


class RefusalLog:
    """Counts the refusals of the current minute."""

    def __init__(self, ledger: Ledger, current_minute: Callable[[], int]) -> None:
        self._ledger = ledger
        self._current_minute = current_minute
        self._minute = -1
        self._counts: dict[RefusalKey, Occurrences] = {}
        #: senders of this minute whose refusals, or publishes to no endpoint, have been logged
        self._logged: set[tuple[str, str]] = set()

    def count(self, draft: Draft) -> None:
        """Count the refusals of one publish; the first of a kind in a minute is recorded at once."""
        self.flush_minute()
        self._log(draft)
        reserved = draft.reserved
        is_charged = bool(reserved.is_rated) and not draft.copies and not draft.dead_letters
        for rejection in draft.rejected:
            if rejection.reason not in TEMPORARY:  # its dead letter has a record
                continue
            is_charged = is_charged and rejection.reason is not Reason.RATE_LIMITED
            key = RefusalKey(
                rejection.reason.value,
                draft.from_,
                rejection.subject,
                rejection.endpoint_hash,
                is_charged,
                rejection.endpoint_hash in draft.full_of_letters,
            )
            is_charged = False  # one publish counts once
            if key in self._counts:
                _add_occurrence(self._counts[key], reserved.seq, reserved.boot_ns)
            else:
                self._counts[key] = []
                self._ledger.defer(_RecordRefusals(key, self._minute, [(reserved.seq, reserved.boot_ns, 1)]))

    def flush_minute(self) -> None:
        """Record the last minute if it is over."""
        minute = self._current_minute()
        if minute != self._minute:
            self.flush()
            self._minute = minute

    def flush(self) -> None:
        """Record all refusals counted so far."""
        for key, occurrences in self._counts.items():
            if occurrences:
                self._ledger.defer(_RecordRefusals(key, self._minute, occurrences))
        self._counts = {}
        self._logged = set()

    def _log(self, draft: Draft) -> None:
        event = "publish_refused" if draft.rejected else "publish_reached_no_endpoint"
        if (draft.from_, event) in self._logged:
            return
        self._logged.add((draft.from_, event))
        if draft.rejected:
            first = draft.rejected[0]
            log.warning(
                event,
                sender=draft.from_,
                subject=first.subject,
                reason=first.text,
                refused=len(draft.rejected),
                delivered_to=draft.stored,
            )
        elif draft.requeued_from is None:
            log.warning(event, sender=draft.from_, subject=draft.subject, kept_in="unrouted/")


class _RecordRefusals:
    """Ledger operation: one aggregated record."""

    __slots__ = ("_key", "_minute", "_occurrences")

    def __init__(self, key: RefusalKey, minute: int, occurrences: Occurrences) -> None:
        self._key = key
        self._minute = minute
        self._occurrences = occurrences

    def apply(self, tx: BusTransaction) -> None:
        key = self._key
        body: dict[str, Any] = {
            "reason": key.reason,
            "key": f"{key.sender} {key.subject}",
            "minute": self._minute,
            "count": sum(times for _seq, _boot_ns, times in self._occurrences),
            "endpoint_hash": key.endpoint_hash,
            "moments": self._occurrences,
        }
        if key.is_charged:
            body["charged"] = True
        if key.is_by_letters:
            body["by_dead_letters"] = True
        tx.journal.append("bus.refused", actor=key.sender, ref=key.reason, body=body)

    def on_committed(self) -> None:
        """Do nothing: the record is all there is."""

    def on_failed(self, _failure: Exception) -> bool:
        return True


def _add_occurrence(occurrences: Occurrences, seq: int, boot_ns: int) -> None:
    """Count one more refusal, in the last entry if that is of the same moment or the list is full."""
    is_full = len(occurrences) >= _MAX_OCCURRENCES
    if occurrences and (is_full or occurrences[-1][:2] == (seq, boot_ns)):
        last_seq, last_boot_ns, times = occurrences[-1]
        occurrences[-1] = (last_seq, last_boot_ns, times + 1)
    else:
        occurrences.append((seq, boot_ns, 1))
