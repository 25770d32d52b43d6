"""One write transaction on bus.db: rows are read once, changed in memory and written back once.

Counters that decide (depth, breaker, rate window, last id) are loaded on first use and written before the commit, so
a batch of publishes to one endpoint costs one update. Loaded rows stay cached for the next transaction while no
other connection has written (data_version). Code that changes a row by other means must go through Ledger.run, which
drops the cache. The endpoint registry is reloaded inside the transaction when its version changed, so a publish
never resolves against an outdated state: a literal endpoint wins over patterns, and the longest prefix wins among
patterns.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from typing import Any

import apsw

from posthouse.bus.results import Endpoint
from posthouse.journal.append import JournalTransaction
from posthouse.model.breaker import BreakerState, Circuit
from posthouse.model.clock import format_utc
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.subjects import REST, LiteralTrie, is_pattern, prefixes
from posthouse.model.ulid import RANDOM_BYTES, next_ulid
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.bus", "bus.sql")
_MAX_CACHED_ROWS = 4_096  # rows cached between transactions: bounds the memory of a bus with many senders
_NEW_BREAKER = BreakerState()


class MailState(enum.IntEnum):
    """The column `state` of a row in `mail`; bus.sql compares with the numbers."""

    RESERVED = 0
    """Admitted; the file may not exist yet."""
    STORED = 1
    """The file exists and its bus.published record is written."""
    REFUSED = 2
    """Refused; the file will be a dead letter."""


class EndpointRegistry:
    """All registered endpoints, by subject, hash and number."""

    def __init__(self) -> None:
        self.version = -1
        self._removals = -1
        self._last_number = 0
        self.by_subject: dict[str, Endpoint] = {}
        self.by_number: dict[int, Endpoint] = {}
        self.by_hash: dict[str, Endpoint] = {}
        #: numbers of the endpoints that only carry replies of one process
        self.private: set[int] = set()
        self._literals: LiteralTrie[Endpoint] = LiteralTrie()

    def refresh(self, db: apsw.Connection, version: int, removals: int) -> None:
        """Load the endpoints that were registered since the last call, or all of them if one was removed."""
        if version == self.version:
            return
        if removals != self._removals:
            self._clear()
        rows: Any = db.execute(SQL.endpoints_after, (self._last_number,))
        for *columns, is_private in rows:
            self._add(Endpoint(*columns), bool(is_private))
        self.version, self._removals = version, removals

    def _clear(self) -> None:
        self._last_number = 0
        self.by_subject, self.by_number, self.by_hash = {}, {}, {}
        self.private = set()
        self._literals = LiteralTrie()

    def _add(self, endpoint: Endpoint, is_private: bool) -> None:
        self._last_number = endpoint.number
        self.by_subject[endpoint.subject] = endpoint
        self.by_number[endpoint.number] = endpoint
        self.by_hash[endpoint.hash] = endpoint
        if is_private:
            self.private.add(endpoint.number)
        if not is_pattern(endpoint.subject):
            self._literals.add(endpoint.subject, endpoint)

    def resolve(self, subject: str) -> list[Endpoint]:
        """Return the endpoints that a publish to `subject` reaches."""
        if is_pattern(subject):
            return self._literals.match(subject)
        found = self.by_subject.get(subject) or next(self.catch_alls(subject), None)
        return [] if found is None else [found]

    def catch_alls(self, subject: str) -> Iterator[Endpoint]:
        """Yield the pattern endpoints that match the subject, longest prefix first."""
        for prefix in prefixes(subject):
            if prefix != subject and (found := self.by_subject.get(f"{prefix}.{REST}")):
                yield found
        if found := self.by_subject.get(REST):
            yield found


class EndpointCounters:
    """The counters of one endpoint in bus.db."""

    __slots__ = (
        "breaker",
        "depth",
        "failed",
        "failed_bytes",
        "has_new_breaker",
        "is_served",
        "last_id",
        "written_depth",
    )

    def __init__(
        self,
        depth: int,
        last_id: str | None,
        is_served: bool,
        failed: int,
        failed_bytes: int,
        breaker: BreakerState,
    ) -> None:
        self.depth = depth
        #: as stored in bus.db: a publish and an end in one transaction cancel out and write nothing
        self.written_depth = depth
        #: dead letters of accepted messages, which posthouse.bus.letter_counts counts
        self.failed = failed
        self.failed_bytes = failed_bytes
        #: the newest id given out for this endpoint whose message may not have ended yet
        self.last_id = last_id
        self.is_served = is_served
        self.breaker = breaker
        self.has_new_breaker = False

    @property
    def has_clean_breaker(self) -> bool:
        """True if recording a success would change nothing."""
        return self.breaker.circuit is Circuit.CLOSED and not self.breaker.failures

    def add_message(self, id_: str) -> None:
        """Count a message that was admitted or adopted."""
        self.depth += 1
        self.last_id = id_ if self.last_id is None or id_ > self.last_id else self.last_id

    def remove_message(self) -> None:
        """Count a message that has ended or was withdrawn."""
        self.depth = max(0, self.depth - 1)

    def set_breaker(self, breaker: BreakerState) -> None:
        if breaker != self.breaker:
            self.breaker = breaker
            self.has_new_breaker = True


class SenderCounter:
    """The rate window of one sender."""

    __slots__ = ("added", "left_window", "total")

    def __init__(self, total: int) -> None:
        #: publishes since the log began, those of this transaction included
        self.total = total
        #: publishes that are known to have left the window
        self.left_window = 0
        #: publishes of this transaction
        self.added = 0

    def refund(self) -> None:
        """Take back the last publish of this transaction."""
        self.total -= 1
        self.added -= 1


class RowCache:
    """Rows of bus.db that a process keeps between transactions; void once another process has written."""

    __slots__ = ("boot_id", "endpoints", "last_id", "senders", "version")

    def __init__(self) -> None:
        self.version = -1
        self.boot_id = ""
        self.last_id: str | None = None
        self.endpoints: dict[int, EndpointCounters | None] = {}
        self.senders: dict[str, SenderCounter] = {}

    def invalidate(self) -> None:
        """Reload every row in the next transaction."""
        self.version = -1


class BusTransaction:
    """The rows that one transaction works on."""

    def __init__(
        self, journal: JournalTransaction, registry: EndpointRegistry, cache: RowCache, boot_ns: int, boot_id: str
    ) -> None:
        self.journal = journal
        self.db = journal.db
        self.registry = registry
        self.now_ns = journal.now_ns
        self.now_ms = journal.now_ns // MILLISECOND_NS
        self.boot_ns = boot_ns
        self.boot_id = boot_id
        self._cache = cache
        is_valid = cache.version == self.db.data_version() and cache.boot_id == boot_id
        if not is_valid or len(cache.senders) + len(cache.endpoints) > _MAX_CACHED_ROWS:
            self._reset_cache()
        self._endpoints = cache.endpoints
        self._senders = cache.senders
        self._touched: dict[int, EndpointCounters] = {}
        self._charged: dict[str, SenderCounter] = {}
        self.last_id = self._first_id = cache.last_id
        #: the last id that got its bus.published record in this transaction
        self.published_id: str | None = None
        self._random = b""
        #: of the messages of this transaction
        self.created_at = format_utc(self.now_ns)
        cache.invalidate()  # until the commit

    def _reset_cache(self) -> None:
        cache = self._cache
        state: Any = self.db.execute(SQL.state).fetchone()
        cache.last_id, version, removals, rates_boot_id = state
        cache.boot_id, cache.endpoints, cache.senders = self.boot_id, {}, {}
        self.registry.refresh(self.db, version, removals)
        if rates_boot_id != self.boot_id:  # times of another boot cannot be compared with those of this one
            self.db.execute(SQL.forget_all_rates)
            self.db.execute(SQL.set_rates_boot_id, (self.boot_id,))
            if rates_boot_id is not None:
                self.journal.append("bus.booted", ref=self.boot_id)

    def next_id(self) -> str:
        """Return an id larger than any before it; only the first one of a millisecond is random."""
        self._random = self._random or os.urandom(RANDOM_BYTES)
        self.last_id = next_ulid(self.last_id, self.now_ms, self._random)
        return self.last_id

    def raise_last_id(self, id_: str) -> None:
        """Make all further ids larger than one that this bus did not create."""
        if self.last_id is None or id_ > self.last_id:
            self.last_id = id_

    def endpoint(self, number: int) -> EndpointCounters | None:
        """Return the counters of an endpoint; None if it has been unregistered."""
        counters = self._touched.get(number)
        if counters is not None:
            return counters
        counters = self._endpoints.get(number)
        if counters is None:
            counters = self._endpoints[number] = self._load(number)
        if counters is not None:
            self._touched[number] = counters
        return counters

    def claim(self, number: int, id_: str, instance: int) -> int | None:
        """Claim a message for an instance and return its attempts; None if another instance works on it."""
        self.db.execute(SQL.claim_mail, (instance, number, id_))
        if not self.db.changes():
            return None
        attempts: int = self.db.execute(SQL.mail_attempts, (number, id_)).get
        return attempts

    def sender(self, name: str) -> SenderCounter:
        """Return the rate window of a sender that publishes in this transaction."""
        counter = self._senders.get(name)
        if counter is None:
            counter = self._senders[name] = SenderCounter(self.db.execute(SQL.rate_total, (name,)).get or 0)
        self._charged[name] = counter
        return counter

    def count_in_window(self, name: str, counter: SenderCounter, horizon_ns: int) -> int:
        """Return how many publishes of a sender are younger than the horizon."""
        base = self.db.execute(SQL.rate_total_at, (name, horizon_ns)).get
        if base is None:
            base = self.db.execute(SQL.rate_base, (name,)).get
        counter.left_window = counter.total - counter.added if base is None else base
        return counter.total - counter.left_window

    def publish_time_ns(self, name: str, nth: int, horizon_ns: int) -> int:
        """Return the boot time of a sender's nth publish since its log began, which is younger than the horizon."""
        found: int | None = self.db.execute(SQL.nth_publish, (name, horizon_ns, nth)).get
        return self.boot_ns if found is None else found  # None: a publish of this transaction

    def write(self) -> None:
        """Write back every row that changed."""
        execute = self.db.execute
        if self.last_id not in (self._first_id, self.published_id):
            self.keep_last_id()
        for number, counters in self._touched.items():
            self._write_endpoint(number, counters)
        for name, counter in self._charged.items():
            if counter.added:
                execute(SQL.add_rate, (name, self.boot_ns, counter.added, counter.total))
                counter.added = 0

    def keep_last_id(self) -> None:
        """Write the newest id to bus_state, because the journal has no bus.published record of it, or soon may not.

        Nearly every publish has one, and the row would be one more page that its commit writes.
        """
        self.db.execute(SQL.set_last_id, (self.last_id,))

    def update_cache(self) -> None:
        """Validate the cached rows after the commit."""
        self._cache.last_id = self.last_id
        self._cache.version = self.db.data_version()

    def _write_endpoint(self, number: int, counters: EndpointCounters) -> None:
        if counters.depth != counters.written_depth:
            self.db.execute(SQL.set_depth, (counters.depth, number))
            counters.written_depth = counters.depth
        if counters.has_new_breaker:
            self.db.execute(SQL.set_breaker, (*breaker_row(counters.breaker), number))
            counters.has_new_breaker = False

    def _load(self, number: int) -> EndpointCounters | None:
        row = self.db.execute(SQL.endpoint_state, (number,)).fetchone()
        if row is None:
            return None
        depth, last_id, is_served, failed, failed_bytes, *breaker = row
        return EndpointCounters(depth, last_id, bool(is_served), failed, failed_bytes, breaker_of(*breaker))


def read_depths(db: apsw.Connection) -> dict[str, int]:
    """Return the depth counter of every endpoint by its subject."""
    rows: Any = db.execute(SQL.depths).fetchall()
    return dict(rows)


def breaker_of(circuit: str | None, failures: int, successes: int, probes: int, since: int, boot: str) -> BreakerState:
    """Return the breaker stored in these columns of bus.db."""
    if circuit is None:
        return _NEW_BREAKER
    return BreakerState(Circuit(circuit), failures, successes, probes, since, boot)


def breaker_row(state: BreakerState) -> tuple[str | None, int, int, int, int, str]:
    """Return the columns of a breaker."""
    is_new = state.circuit is Circuit.CLOSED and state.failures == 0
    circuit = None if is_new else state.circuit.value
    return circuit, state.failures, state.successes, state.probes, state.since_boot_ns, state.boot_id
