"""Forging a lake where it lies: rows alone, or rows together with the seals that were made of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.merkle import NOTE, Seal, leaves_of, root


def rewrite(lake: Lake, table: str, change: Callable[[dict[str, object]], None]) -> None:
    """Alter the first row of the largest file of a table, and let the log agree with the new size."""
    path, file = max(
        ((lake.path / table / each.path, each) for each in lake.delta(table).files()), key=lambda f: f[1].rows
    )
    rows = pq.ParquetFile(path).read()
    values = rows.to_pylist()
    change(values[0])
    pq.write_table(pa.Table.from_pylist(values, schema=rows.schema), path)
    for log in (lake.path / table / "_delta_log").glob("*.json"):
        log.write_text(log.read_text().replace(f'"size":{file.size_bytes}', f'"size":{path.stat().st_size}'))


def seal_again(lake: Lake, table: str) -> int:
    """Let every commit of a table carry the root of the rows that are there now; return how many changed."""
    delta = lake.delta(table)
    rows = pa.concat_tables([pq.ParquetFile(delta.path / file.path).read() for file in delta.files()])
    changed = 0
    for log in (delta.path / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if note := action.get("commitInfo", {}).get(NOTE):
                action["commitInfo"][NOTE] = _sealed(note, rows)
                changed += action["commitInfo"][NOTE] != note
        log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return changed


def _sealed(note: str, rows: pa.Table) -> str:
    seal = msgspec.json.decode(note, type=Seal)
    is_of = (pc.field("epoch") == seal.epoch) & (pc.field("seq") > seal.after) & (pc.field("seq") <= seal.to)
    leaves = leaves_of(rows.filter(is_of).sort_by("seq").drop_columns(["epoch"]), seal.after, seal.to)
    forged = msgspec.structs.replace(seal, root=root(leaves).hex(), leaves=tuple(leaf.hex() for leaf in leaves))
    return msgspec.json.encode(forged).decode()
