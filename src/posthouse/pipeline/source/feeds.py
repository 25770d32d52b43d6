"""The feeds: append-only views of a store's journal, with typed columns that are a contract.

    journal                     every record, of any store
    events                      accepted events with their content, of a relay
    deliveries, locks           records of these areas, of a relay
    bus, outbox, inbox          records of these areas, of the store of the same name

Every feed has seq, at_ns, type and mesh, which is what filters can be pushed down on. Loads nothing heavy: workers,
driver and command line all use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_RECORD = ("seq", "at_ns", "type", "mesh", "actor", "ref", "body")
_EVENT_INTEGERS = ("kind", "created_at_ns", "expiration_s")
_EVENT = ("seq", "at_ns", "type", "mesh", "id", "pubkey", "kind", "created_at_ns", "recipient", "expiration_s", "event")
_LOCK_TEXTS = ("resource", "owner", "request_id", "run_id", "former_owner")
_LOCK = (
    *("seq", "at_ns", "type", "mesh", "resource", "owner", "token", "lease_ms", "request_id", "wait_ms", "run_id"),
    *("boot_ns", "deadline_boot_ns", "former_owner", "former_token", "former_deadline_boot_ns", "token_leap"),
)
_INTEGERS = frozenset({"seq", "at_ns", *_EVENT_INTEGERS, *_LOCK[6:]} - set(_LOCK_TEXTS))


@dataclass(frozen=True, slots=True)
class Feed:
    """One feed: the view it reads, and its columns in order."""

    name: str
    view: str
    columns: tuple[str, ...]
    #: kinds of store that have it
    stores: tuple[str, ...]
    #: a GLOB on type that narrows the view; None: everything in it
    glob: str | None = None

    def schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the columns for Arrow, some of them or all."""
        import pyarrow as pa

        chosen = columns or self.columns
        return pa.schema([(name, pa.int64() if name in _INTEGERS else pa.string()) for name in chosen])

    def struct(self) -> StructType:
        """Return the columns for Spark."""
        from pyspark.sql.types import LongType, StringType, StructField, StructType

        kinds = {True: LongType(), False: StringType()}
        return StructType([StructField(name, kinds[name in _INTEGERS]) for name in self.columns])


STORES = ("relay", "bus", "outbox", "inbox")
JOURNAL = Feed("journal", "feed_journal_v1", _RECORD, STORES)
EVENTS = Feed("events", "feed_events_v1", _EVENT, ("relay",))
FEEDS: dict[str, Feed] = {
    feed.name: feed
    for feed in (
        JOURNAL,
        EVENTS,
        Feed("deliveries", "feed_deliveries_v1", _RECORD, ("relay",)),
        Feed("locks", "feed_locks_v1", _LOCK, ("relay",)),
        Feed("bus", "feed_journal_v1", _RECORD, ("bus",), "bus.*"),
        Feed("outbox", "feed_journal_v1", _RECORD, ("outbox",), "outbox.*"),
        Feed("inbox", "feed_journal_v1", _RECORD, ("inbox",), "inbox.*"),
    )
}
