"""The rate limit over the history of one sender: a fold over its publishes in the order in which they were decided.

A row is one copy of a publish, or a moment in which some were refused. Copies of one publish have one verdict. What
passes here has been counted, whatever later rules say; what did not count in life (mail over the mesh, a dead letter
sent again) passes untouched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from posthouse.model.rate import judge_log, window_start_ns
from posthouse.model.reliability import RateLimit

RATE_LIMITED = "rate_limited"
BOOTED = "booted"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A copy of a publish, or equal ones that were refused at one moment."""

    kind: str
    seq: int
    boot_ns: int
    id: str
    sender: str
    #: what was asked for: may be a wildcard
    said_to: str
    #: the endpoint's own subject
    subject: str
    place: str | None
    rated: bool
    #: the code of the refusal in life
    was: str | None
    was_times: int
    minute: int
    created_ms: int
    budget: str | None
    #: seq of the record
    record: int
    would: str | None = None
    would_times: int = 0
    text: str | None = None

    @property
    def order(self) -> tuple[int, int, int, str, int]:
        """The order of decisions.

        Within one moment nothing is freed, so what was let through comes first, then what counted for the rate and
        was refused after that, last what the rate refused: each then meets at least what it met in life.
        """
        rank = 0 if self.kind != "refused" else 2 if self.was == RATE_LIMITED else 1
        return self.seq, self.boot_ns, rank, self.id, self.record

    def refused(self, code: str, times: int, text: str | None) -> Attempt:
        """Return the row with its verdict."""
        return replace(self, would=code, would_times=times, text=text)


def judge_sender(rows: Sequence[Attempt], boots: Sequence[int], config: RateLimit) -> Iterator[Attempt]:
    """Yield every attempt with what the rate limit would have said."""
    log: list[int] = []
    former: Attempt | None = None
    left = sorted(boots)
    for row in sorted(rows, key=lambda row: row.order):
        while left and left[0] <= row.seq:  # the window of another boot means nothing
            left.pop(0)
            log.clear()
        if not row.rated:
            yield row
        elif former is not None and row.id and former.id == row.id:
            yield row if former.would is None else row.refused(former.would, 0, former.text)
        else:
            for judged in _judge(row, log, config):
                former = judged
                yield judged


def _judge(row: Attempt, log: list[int], config: RateLimit) -> Iterator[Attempt]:
    """Judge a row that may stand for several publishes; what passes and what does not become a row each."""
    passed, text = 0, None
    times = max(1, row.was_times)
    while passed < times:
        verdict = judge_log(log, row.sender, row.boot_ns, config)
        if not verdict.allowed:
            text = verdict.text
            break
        log.append(row.boot_ns)
        passed += 1
    _forget(log, row.boot_ns, config)
    if row.was is None:
        yield row if text is None else row.refused(RATE_LIMITED, 1, text)
        return
    if passed:
        yield replace(row, was_times=passed)
    if passed < times:
        yield replace(row, was_times=times - passed).refused(RATE_LIMITED, times - passed, text)


def _forget(log: list[int], now_ns: int, config: RateLimit) -> None:
    """Drop what has left the window, now and then: a fold over years must not carry them all."""
    if len(log) > 4096 and log[0] <= (horizon := window_start_ns(now_ns, config)):
        log[:] = [at_ns for at_ns in log if at_ns > horizon]


def attempt_of(values: dict[str, Any]) -> Attempt:
    """Return the attempt in a row of a table."""
    return Attempt(**{name: values[name] for name in Attempt.__slots__})
