"""The rows of a table of the lake as other tools read them, and the snippets that the how-to gives for them.

The tools are imported when they are used: every worker of a test run imports this module, and one of them uses it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.docs.pages import ROOT


def delta_rs(path: Path) -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable(str(path)).to_pyarrow_table()


def polars(path: Path) -> pa.Table:
    import polars as pl

    return pl.read_delta(str(path)).to_arrow()


def pandas(path: Path) -> pa.Table:
    import pandas as pd
    from deltalake import DeltaTable

    frame = DeltaTable(str(path)).to_pandas(types_mapper=pd.ArrowDtype)
    return pa.Table.from_pandas(frame, preserve_index=False)


def duck(path: Path) -> pa.Table:
    import duckdb
    from deltalake import DeltaTable

    rows = DeltaTable(str(path)).to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    return duckdb.sql("SELECT * FROM rows").to_arrow_table()


TOOLS: dict[str, Callable[[Path], pa.Table]] = {
    "delta-rs": delta_rs,
    "Polars": polars,
    "pandas": pandas,
    "DuckDB": duck,
}


def bag(rows: pa.Table, schema: pa.Schema) -> Counter[str]:
    """Return rows as a bag, in the types that the lake declares."""
    return Counter(map(repr, rows.select(schema.names).cast(schema).to_pylist()))


def snippets() -> list[str]:
    """Return the programs of the how-to."""
    page = (ROOT / "docs" / "how-to" / "pipeline-tables.md").read_text()
    blocks = re.findall(r"(?:^    .*\n|^\n)+", page, re.MULTILINE)
    return [re.sub(r"(?m)^    ", "", block).strip() for block in blocks if "answer =" in block]


def run_snippet(program: str, lake: Path) -> dict[str, int]:
    """Return the answer of a program, by state."""
    names: dict[str, Any] = {"lake": str(lake)}
    exec(program, names)  # noqa: S102 - a program of our own documents
    return {str(state): int(count) for state, count in names["answer"]}
