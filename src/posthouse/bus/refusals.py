"""bus.refused records, aggregated: a row per refusal would let any sender fill the disk.

The first refusal of a reason, sender and endpoint within a minute is recorded at once, so that it can be seen; the
rest of that minute becomes one more record when the minute is over or the bus closes. A record also tells when the
rules said no, so that they can be run again over history; beyond a bound of moments the rest counts at the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.draft import Draft
from posthouse.bus.page import Page
from posthouse.bus.results import Reason

if TYPE_CHECKING:
    from posthouse.bus.ledger import Ledger

_DEAD = {Reason.ACCESS_DENIED, Reason.BUDGET_EXCEEDED}  # these have a bus.dead record each
#: reason, sender, subject, mailbox, and whether the publish had passed the rate and left no other record
Key = tuple[str, str, str, str, bool]
Moments = list[tuple[int, int, int]]
_MOMENTS_MAX = 1_024  # of one key and minute: some 30 KB
_decode = msgspec.json.Decoder(tuple[int, int, int]).decode


class Refusals:
    """Counts what was refused in the current minute."""

    def __init__(self, ledger: Ledger, minute: Callable[[], int]) -> None:
        self._ledger = ledger
        self._minute = minute
        self._current = -1
        self._counts: dict[Key, Moments] = {}

    def count(self, draft: Draft) -> None:
        """Note the refusals of one publish."""
        self.turn()
        seq, boot_ns, is_rated = _decode(draft.reserved)
        is_charged = bool(is_rated) and not draft.copies and not draft.letters
        for entry in draft.rejected:
            if entry.reason in _DEAD:
                continue
            is_charged = is_charged and entry.reason is not Reason.RATE_LIMITED
            key = (entry.reason.value, draft.from_, entry.subject, entry.endpoint_hash, is_charged)
            is_charged = False  # one publish counts once
            if key in self._counts:
                _add_moment(self._counts[key], seq, boot_ns)
            else:
                self._counts[key] = []
                self._ledger.submit_lazily(_Refused(key, self._current, [(seq, boot_ns, 1)]))

    def turn(self) -> None:
        """Record the minute that is over."""
        minute = self._minute()
        if minute != self._current:
            self.write()
            self._current = minute

    def write(self) -> None:
        """Record what is counted so far."""
        for key, moments in self._counts.items():
            if moments:
                self._ledger.submit_lazily(_Refused(key, self._current, moments))
        self._counts = {}


class _Refused:
    """One aggregated record."""

    __slots__ = ("_key", "_minute", "_moments")

    def __init__(self, key: Key, minute: int, moments: Moments) -> None:
        self._key = key
        self._minute = minute
        self._moments = moments

    def apply(self, page: Page) -> None:
        reason, sender, subject, endpoint_hash, is_charged = self._key
        count = sum(times for _seq, _boot_ns, times in self._moments)
        body: dict[str, Any] = {"reason": reason, "key": f"{sender} {subject}", "minute": self._minute}
        body |= {"count": count, "endpoint_hash": endpoint_hash, "moments": self._moments}
        if is_charged:
            body["charged"] = True
        page.tx.append("bus.refused", actor=sender, ref=reason, body=body)

    def committed(self) -> None:
        """Nothing is left to do."""

    def failed(self, _failure: Exception) -> bool:
        return True


def _add_moment(moments: Moments, seq: int, boot_ns: int) -> None:
    """Count one more refusal: at its own moment, or at the last one when it is the same or there are too many."""
    is_full = len(moments) >= _MOMENTS_MAX
    if moments and (is_full or moments[-1][:2] == (seq, boot_ns)):
        last_seq, last_boot_ns, times = moments[-1]
        moments[-1] = (last_seq, last_boot_ns, times + 1)
    else:
        moments.append((seq, boot_ns, 1))
