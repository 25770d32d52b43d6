"""Forging a lake where it lies: rows alone, or rows together with the seals that were made of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from posthouse.model.merkle_tree import root
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.data_file import DataFile
from posthouse.pipeline.lake.merkle import NOTE, VERSION, Seal, leaves_of
from posthouse.pipeline.tables.bronze import SEALS_TABLE


def rewrite(lake: Lake, table: str, change: Callable[[dict[str, object]], None]) -> None:
    """Alter the first row of the largest file of a table, and let the log agree with the new size."""
    file = max(lake.delta(table).files(), key=lambda each: each.rows)
    rows = pq.ParquetFile(lake.path / table / file.path).read()
    values = rows.to_pylist()
    change(values[0])
    _overwrite(lake, table, file, pa.Table.from_pylist(values, schema=rows.schema))


def _overwrite(lake: Lake, table: str, file: DataFile, rows: pa.Table) -> None:
    path = lake.path / table / file.path
    pq.write_table(rows, path)
    for log in (lake.path / table / "_delta_log").glob("*.json"):
        lines = log.read_text().splitlines()
        changed = [
            line.replace(f'"size":{file.size_bytes}', f'"size":{path.stat().st_size}') if path.name in line else line
            for line in lines
        ]
        log.write_text("".join(f"{line}\n" for line in changed))


def seal_again(lake: Lake, table: str, version: int = VERSION) -> int:
    """Let every seal of a table, and the note of its commit, be that of the rows that are there now.

    Return how many seals changed. `version` 1 makes a lake of an older posthouse.
    """
    delta = lake.delta(table)
    rows = pa.concat_tables([pq.ParquetFile(delta.path / file.path).read() for file in delta.files()])
    for log in (delta.path / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if note := action.get("commitInfo", {}).get(NOTE):
                seal = _sealed(msgspec.json.decode(note, type=Seal), rows, version)
                action["commitInfo"][NOTE] = msgspec.json.encode(seal).decode()
        log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return sum(_seal_file(lake, table, file, rows, version) for file in lake.delta(SEALS_TABLE).files())


def _seal_file(lake: Lake, table: str, file: DataFile, rows: pa.Table, version: int) -> int:
    stored = pq.ParquetFile(lake.path / SEALS_TABLE / file.path).read()
    values = stored.to_pylist()
    changed = 0
    for value in values:
        if value["bronze_table"] == table:
            seal = msgspec.convert({name: value[name] for name in Seal.__struct_fields__}, Seal)
            changed += _sealed(seal, rows, version) != seal
            value.update(msgspec.to_builtins(_sealed(seal, rows, version)))
    _overwrite(lake, SEALS_TABLE, file, pa.Table.from_pylist(values, schema=stored.schema))
    return changed


def _sealed(seal: Seal, rows: pa.Table, version: int) -> Seal:
    is_of = (pc.field("epoch") == seal.epoch) & (pc.field("seq") > seal.after) & (pc.field("seq") <= seal.to)
    sealed = rows.filter(is_of).sort_by("seq").drop_columns(["epoch", "day"])
    leaves = leaves_of(sealed, seal.after, seal.to, version)
    texts = tuple(leaf.hex() for leaf in leaves)
    return msgspec.structs.replace(seal, root=root(leaves).hex(), leaves=texts, version=version)
