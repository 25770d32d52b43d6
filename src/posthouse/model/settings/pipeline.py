"""Settings of the pipeline: where the lake is, and what Spark may use."""

from __future__ import annotations

from posthouse.model.settings.setting import Setting

PIPELINE: tuple[Setting, ...] = (
    Setting("pipeline.lake", str, "~/.posthouse/lake", "Directory of the lake."),
    Setting("pipeline.master", str, "local[*]", "Where Spark computes: local[N], local[*] or a cluster's URL."),
    Setting("pipeline.driver_memory_mb", int, 1024, "Memory of Spark's driver.", "MB", 512, 1_048_576),
    Setting("pipeline.batch_rows", int, 1_000_000, "Rows of the journal per commit of a run.", "rows", 1, 100_000_000),
)
