"""The audit's signature stage against bare libsodium on the same cores, in the same run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.bench.pipeline.terms import Scale
from posthouse.bench.relay.events import Supply
from posthouse.bench.relay.floor import VerifyFloor
from posthouse.bench.rounds import compare
from posthouse.model.event import Event, encode_event
from posthouse.pipeline.audit.frames import EVENT_COLUMNS, prove_events
from posthouse.pipeline.audit.line import EpochRow, Extent, Lines, draw_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = "e" * 32


def measure_signatures(spark: SparkSession, folder: Path, scale: Scale) -> dict[str, Any]:
    """Return how many events the stage proves per second, of what two threads of libsodium alone verify."""
    events = Supply().take(scale.events)
    stored = _store(spark, folder / "events", events)
    lines = draw_lines([EpochRow(_EPOCH, None, 0, "relay", 0)], [Extent(_EPOCH, 1, len(events), len(events))], [])
    floor = VerifyFloor(events)
    try:
        compared = compare(
            "signatures",
            lambda: _rate(lines, stored, len(events)),
            floor.rate,
            rounds=scale.rounds,
            required=0.4,
            aim=0.7,
        )
    finally:
        floor.close()
    return compared.value()


def _store(spark: SparkSession, folder: Path, events: list[Event]) -> DataFrame:
    """Write events into as many files as there are cores, and return them read back."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    half = (len(events) + 1) // 2
    for number, start in enumerate(range(0, len(events), half)):
        rows = [_row(start + place + 1, event) for place, event in enumerate(events[start : start + half])]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet")
    return spark.read.parquet(str(folder))


def _row(seq: int, event: Event) -> dict[str, Any]:
    row = {
        "epoch": _EPOCH,
        "seq": seq,
        "at_ns": event.created_at_ns,
        "id": event.id,
        "pubkey": event.pubkey,
        "kind": event.kind,
        "created_at_ns": event.created_at_ns,
        "event": encode_event(event).decode(),
    }
    return {name: row[name] for name in EVENT_COLUMNS}


def _rate(lines: Lines, stored: DataFrame, count: int) -> float:
    started = time.perf_counter()
    prove_events(lines, stored).write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - started)
