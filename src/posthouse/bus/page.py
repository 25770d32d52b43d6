"""The working set of one transaction: rows are read once, decided on in memory and written back once.

A page lives for one transaction. Counters that decide (depth, breaker, rate window, last id) are loaded when first
asked for and written by `write` before the commit, so a batch of publishes to one endpoint costs one update.
Whoever changes a row by other means must not use the page for it in the same transaction.
"""

from __future__ import annotations

import os
from typing import Any

import apsw

from posthouse.bus.book import EndpointBook
from posthouse.bus.statements import SQL
from posthouse.journal.append import JournalTransaction
from posthouse.model.breaker import BreakerState, Circuit
from posthouse.model.ids import RANDOM_BYTES, next_ulid
from posthouse.model.limits import MILLISECOND_NS

_STATE, _ENDPOINT_STATE = SQL.state, SQL.endpoint_state
_SET_DEPTH, _SET_BREAKER, _SET_LAST_ID = SQL.set_depth, SQL.set_breaker, SQL.set_last_id
_PRISTINE = BreakerState()


class EndpointCounters:
    """What bus.db counts about one endpoint."""

    __slots__ = ("breaker", "depth", "has_new_breaker", "is_changed", "last_id", "served_by")

    def __init__(self, depth: int, last_id: str | None, served_by: int | None, breaker: BreakerState) -> None:
        self.depth = depth
        #: the newest id reserved for this endpoint
        self.last_id = last_id
        self.served_by = served_by
        self.breaker = breaker
        self.is_changed = False
        self.has_new_breaker = False

    def set_breaker(self, breaker: BreakerState) -> None:
        if breaker != self.breaker:
            self.breaker = breaker
            self.has_new_breaker = True


class SenderCounter:
    """The rate window of one sender."""

    __slots__ = ("added", "count", "number")

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        #: publishes in the log, those of this transaction included
        self.count = count
        self.added = 0


class Page:
    """The rows one transaction works on."""

    def __init__(self, tx: JournalTransaction, book: EndpointBook, boot_ns: int, boot_id: str) -> None:
        self.tx = tx
        self.db = tx.db
        self.book = book
        self.now_ns = tx.now_ns
        self.now_ms = tx.now_ns // MILLISECOND_NS
        self.boot_ns = boot_ns
        self.boot_id = boot_id
        self.last_id: str | None
        (self.last_id, version) = self.db.execute(_STATE).fetchone()  # type: ignore[misc]
        self._first_id = self.last_id
        book.refresh(self.db, version)
        self._endpoints: dict[int, EndpointCounters | None] = {}
        self._senders: dict[str, SenderCounter] = {}

    def mint(self) -> str:
        """Return an id larger than any before it."""
        self.last_id = next_ulid(self.last_id, self.now_ms, os.urandom(RANDOM_BYTES))
        return self.last_id

    def raise_last_id(self, id_: str) -> None:
        """Let the next ids be larger than one that came from elsewhere."""
        if self.last_id is None or id_ > self.last_id:
            self.last_id = id_

    def endpoint(self, number: int) -> EndpointCounters | None:
        """Return the counters of an endpoint; None when it is not registered any more."""
        try:
            return self._endpoints[number]
        except KeyError:
            counters = self._endpoints[number] = self._load(number)
            return counters

    def sender(self, name: str) -> SenderCounter:
        """Return the rate window of a sender; what another boot counted is void."""
        counter = self._senders.get(name)
        if counter is None:
            counter = self._senders[name] = self._load_sender(name)
        return counter

    def forget_rates(self, counter: SenderCounter, horizon_ns: int) -> None:
        """Drop what has left the sender's window."""
        gone = self.db.execute(SQL.rate_before, (counter.number, horizon_ns)).get
        if gone:
            self.db.execute(SQL.forget_rates, (counter.number, horizon_ns))
            counter.count -= gone
            self.db.execute(SQL.set_rate_sender, (self.boot_id, counter.count - counter.added, counter.number))

    def write(self) -> None:
        """Write back everything that changed."""
        execute = self.db.execute
        if self.last_id != self._first_id:
            execute(_SET_LAST_ID, (self.last_id,))
        for number, counters in self._endpoints.items():
            if counters is not None:
                self._write_endpoint(number, counters)
        for counter in self._senders.values():
            if counter.added:
                execute(SQL.set_rate_sender, (self.boot_id, counter.count, counter.number))
                execute(SQL.add_rate, (counter.number, self.boot_ns, counter.added))

    def _write_endpoint(self, number: int, counters: EndpointCounters) -> None:
        if counters.is_changed:
            self.db.execute(_SET_DEPTH, (counters.depth, counters.last_id, number))
        if counters.has_new_breaker:
            self.db.execute(_SET_BREAKER, (*breaker_row(counters.breaker), number))

    def _load(self, number: int) -> EndpointCounters | None:
        row = self.db.execute(_ENDPOINT_STATE, (number,)).fetchone()
        if row is None:
            return None
        depth, last_id, served_by, *breaker = row
        return EndpointCounters(depth, last_id, served_by, breaker_of(*breaker))

    def _load_sender(self, name: str) -> SenderCounter:
        row = self.db.execute(SQL.rate_sender, (name,)).fetchone()
        if row is None:
            return SenderCounter(self.db.execute(SQL.add_rate_sender, (name, self.boot_id)).get, 0)
        number, boot_id, count = row
        if boot_id != self.boot_id:
            self.db.execute(SQL.forget_all_rates, (number,))
            count = 0
        return SenderCounter(number, count)


def read_depths(db: apsw.Connection) -> dict[str, int]:
    """Return the depth counter of every endpoint by its subject."""
    rows: Any = db.execute(SQL.depths).fetchall()
    return dict(rows)


def breaker_of(circuit: str | None, failures: int, successes: int, probes: int, since: int, boot: str) -> BreakerState:
    """Return the breaker that a row of bus.db tells."""
    if circuit is None:
        return _PRISTINE
    return BreakerState(Circuit(circuit), failures, successes, probes, since, boot)


def breaker_row(state: BreakerState) -> tuple[str | None, int, int, int, int, str]:
    """Return the columns of a breaker."""
    is_new = state.circuit is Circuit.CLOSED and state.failures == 0
    circuit = None if is_new else state.circuit.value
    return circuit, state.failures, state.successes, state.probes, state.since_boot_ns, state.boot_id
