"""silver_leases: every lease that a relay granted, by store, mesh, resource and token.

It is folded from silver_leases_facts. A take-over is two facts: the new lease starts, and the former one is overtaken.
A restore replaces the token of every unreleased lease, so such a lease continues under a token that no grant names; in
this table it starts with its next record.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from posthouse.model.limits import MILLISECOND_NS
from posthouse.pipeline.epochs import first_known_epochs
from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import (
    BOOLEAN,
    LONG,
    TEXT,
    RefreshMode,
    Table,
    day,
    hour,
    number,
    struct,
    text,
    whole,
)

KEYS = ("store", "mesh", "resource", "token")
FACTS_SCHEMA = struct(
    epoch=TEXT,
    seq=LONG,
    at_ns=LONG,
    fact=TEXT,
    store=TEXT,
    mesh=TEXT,
    resource=TEXT,
    token=LONG,
    owner=TEXT,
    lease_ms=LONG,
    run_id=TEXT,
    boot_ns=LONG,
    deadline_boot_ns=LONG,
    request_id=TEXT,
    wait_ms=LONG,
)
SCHEMA = struct(
    store=TEXT,
    mesh=TEXT,
    resource=TEXT,
    token=LONG,
    owner=TEXT,
    lease_ms=LONG,
    renewals=LONG,
    epoch=TEXT,
    seq=LONG,
    granted_at_ns=LONG,
    took_over=BOOLEAN,
    wait_ms=LONG,
    ended_at_ns=LONG,
    ended_by=TEXT,
    held_ms=LONG,
    day=TEXT,
    hour=TEXT,
    **{LOST: BOOLEAN},
)
_ENDS = ("released", "expired", "broken", "overtaken")
_TYPES = ("lock.acquired", "lock.taken_over", "lock.renewed", "lock.released", "lock.expired", "lock.broken")


def lease_facts(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the facts of leases."""
    records = inputs["bronze_journal"].where(f.col("type").isin(*_TYPES))
    records = records.withColumn("store", _store(inputs["bronze_epochs"]))
    body = f.col("body")
    overtaken = records.where(f.col("type") == "lock.taken_over").select(
        *_fact_columns(f.lit("overtaken"), number(body, "former_token"), text(body, "former_owner"), is_end=True)
    )
    own = records.select(
        *_fact_columns(f.substring_index("type", ".", -1), number(body, "token"), text(body, "owner"), is_end=False)
    )
    return own.unionByName(overtaken)


def _store(epochs: DataFrame) -> Column:
    """Return the root of each row's epoch; there are few epochs, so they become literals of the query plan."""
    roots = first_known_epochs({row["epoch"]: row["parent"] for row in epochs.select("epoch", "parent").collect()})
    named = [f.lit(word) for pair in sorted(roots.items()) for word in pair]
    return f.coalesce(f.create_map(*named)[f.col("epoch")], f.col("epoch")) if named else f.col("epoch")


def _fact_columns(fact: Column, token: Column, owner: Column, *, is_end: bool) -> list[Column]:
    body = f.col("body")
    own = {
        "lease_ms": number(body, "lease_ms"),
        "deadline_boot_ns": number(body, "deadline_boot_ns"),
        "request_id": text(body, "request_id"),
        "wait_ms": number(body, "wait_ms"),
    }
    given = {
        **{name: f.col(name) for name in ("epoch", "seq", "at_ns", "store")},
        "fact": fact,
        "mesh": f.coalesce("mesh", f.lit("")),
        "resource": f.col("ref"),
        "token": token,
        "owner": owner,
        "run_id": text(body, "run_id"),
        "boot_ns": f.coalesce(number(body, "granted_boot_ns"), number(body, "boot_ns")),
        **({} if is_end else own),
    }
    return [given.get(name.name, f.lit(None)).cast(name.dataType).alias(name.name) for name in FACTS_SCHEMA.fields]


def leases(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per lease."""
    kept = ~f.col(LOST)
    first = f.struct(LOST, "seq", "at_ns", "fact", "boot_ns", "run_id", "epoch", "wait_ms", "request_id")
    ended = f.when(f.col("fact").isin(*_ENDS) & kept, f.struct("seq", "at_ns", "fact", "boot_ns", "run_id"))
    granted = f.when(~f.col("fact").isin("overtaken"), f.col("lease_ms"))
    folded = (
        inputs["silver_leases_facts"]
        .groupBy(*KEYS)
        .agg(
            f.min(first).alias("first"),
            f.min(ended).alias("ended"),
            f.max("owner").alias("owner"),
            f.max_by(granted, f.when(granted.isNotNull(), f.col("seq"))).alias("lease_ms"),
            f.sum(f.when((f.col("fact") == "renewed") & kept, 1).otherwise(0)).cast("long").alias("renewals"),
        )
    )
    return folded.select(*_columns())


def _columns() -> list[Column]:
    granted_at_ns = f.col("first.at_ns")
    same_run = f.col("ended.run_id") == f.col("first.run_id")
    boot_ns, wall_ns = f.col("ended.boot_ns") - f.col("first.boot_ns"), f.col("ended.at_ns") - granted_at_ns
    return [
        *[f.col(name) for name in (*KEYS, "owner", "lease_ms", "renewals")],
        f.col("first.epoch").alias("epoch"),
        f.col("first.seq").alias("seq"),
        granted_at_ns.alias("granted_at_ns"),
        (f.col("first.fact") == "taken_over").alias("took_over"),
        f.col("first.wait_ms").alias("wait_ms"),
        f.col("ended.at_ns").alias("ended_at_ns"),
        f.col("ended.fact").alias("ended_by"),
        whole(f.when(same_run, boot_ns).otherwise(wall_ns), MILLISECOND_NS).alias("held_ms"),
        day(granted_at_ns).alias("day"),
        hour(granted_at_ns).alias("hour"),
        f.col(f"first.{LOST}").alias(LOST),
    ]


FACTS = Table(
    "silver_leases_facts",
    ("bronze_journal", "bronze_epochs"),
    KEYS,
    FACTS_SCHEMA,
    lease_facts,
    RefreshMode.APPEND_FACTS,
)
TABLE = Table("silver_leases", (FACTS.name,), KEYS, SCHEMA, leases, RefreshMode.FOLD_KEYS)
