"""Finding messages in the lake without Spark: for `trace` and `history`, when a relay has pruned them.

Only rows of relays count, and none that a restore has lost. A time before which a message cannot have been accepted
lets most files be left out; without one the columns that hold ids are read through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from posthouse.journal.record import Record
from posthouse.model.event import Event, decode_event
from posthouse.model.kinds import MESSAGE
from posthouse.model.timestamps import format_utc
from posthouse.pipeline.archive.bronze import Bronze, Choice
from posthouse.pipeline.archive.states import message_states
from posthouse.pipeline.lake.epochs import ALL_LOST, live_through
from posthouse.pipeline.lake.lake import Lake

_RECORD = ("seq", "at_ns", "type", "mesh", "actor", "ref", "body")
_DAY_CHARS = 10  # of 2026-11-15T...


class Lookup:
    """The long memory of relays and buses, as far as one question needs it."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        epochs = lake.epochs()
        live = live_through(epochs)
        self._live = {each.epoch: live.get(each.epoch, ALL_LOST) for each in epochs if each.store == "relay"}
        self._bus = {each.epoch: live.get(each.epoch, ALL_LOST) for each in epochs if each.store == "bus"}

    def states(self, message_id: str, since_ns: int | None = None) -> dict[str, Any] | None:
        """Return what the journal tells of a message and its deliveries, as the relay would; None when nothing."""
        import pyarrow.compute as pc

        where = (pc.field("ref") == message_id) | pc.match_substring(pc.field("body"), message_id)
        records = self._records(Choice(first_day=_day(since_ns), where=where), self._live)
        return message_states(message_id, records)

    def bus_records(self, event_id: str, bus_id: str | None) -> list[Record]:
        """Return what buses tell of a message that crossed the bridge: by its id there, or by the event it came as."""
        import pyarrow.compute as pc

        types = pc.field("type").isin(["bus.published", "bus.handled", "bus.failed", "bus.dead"])
        if bus_id is not None:
            return self._records(Choice(where=types & (pc.field("ref") == bus_id)), self._bus)
        came = types & pc.match_substring(pc.field("body"), event_id)
        refs = sorted({str(record.ref) for record in self._records(Choice(where=came), self._bus)})
        return self._records(Choice(where=types & pc.field("ref").isin(refs)), self._bus) if refs else []

    def messages(
        self, mesh: str, is_wanted: Callable[[Event], bool], text: str, *, before_seq: int | None, after_seq: int = 0
    ) -> Iterator[tuple[int, Event]]:
        """Yield messages of a mesh with their seq, newest first; each has `text` somewhere in its JSON."""
        import pyarrow.compute as pc

        through = None if before_seq is None else before_seq - 1
        where = (pc.field("kind") == MESSAGE) & (pc.field("mesh") == mesh)
        where &= pc.match_substring(pc.field("event"), text)
        choice = Choice(after_seq=after_seq, through_seq=through, where=where)
        table = Bronze(self._lake, "bronze_events")
        seen: set[str] = set()
        for part in table.batches(choice, ("epoch", "seq", "event"), newest_first=True):
            rows = [row for row in part.to_pylist() if row["seq"] <= self._live.get(row["epoch"], ALL_LOST)]
            for row in sorted(rows, key=lambda row: -int(row["seq"])):
                event = decode_event(row["event"].encode())
                if event.id not in seen and is_wanted(event):
                    seen.add(event.id)
                    yield row["seq"], event

    def _records(self, choice: Choice, live: dict[str, int]) -> list[Record]:
        rows = Bronze(self._lake, "bronze_journal").rows(choice, ("epoch", *_RECORD))
        kept = [row for row in rows if row["seq"] <= live.get(row["epoch"], ALL_LOST)]
        return sorted(Record(*(row[name] for name in _RECORD)) for row in kept)


def _day(at_ns: int | None) -> str | None:
    return None if at_ns is None else format_utc(at_ns)[:_DAY_CHARS]
