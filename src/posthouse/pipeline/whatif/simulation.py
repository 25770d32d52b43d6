"""Simulate proposed bus rules over a whole history, in Spark.

Spark extracts publish attempts and mailbox changes from the journals of buses (payloads are never parsed), then
workers fold senders and mailboxes with posthouse.pipeline.whatif.proposed_rules. The fields `reserved` and `moments`
locate every decision between two journal records, so the simulated state is exact. A sender or a mailbox is one group
and must fit into a worker's memory. Only figures return to the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType

from posthouse.pipeline.lake import Lake
from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import LONG, TEXT, mailbox_hash, number, struct, text, whole
from posthouse.pipeline.whatif.proposed_rules import (
    BOOTED,
    COMPARED,
    FULL_OF_LETTERS,
    Attempt,
    Change,
    Proposal,
    attempt_of,
    simulate_mailbox,
    simulate_sender,
)

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession


_MINUTE_MS = 60_000
_BUDGET = "hopCount LONG, maxHops LONG, ancestorChain ARRAY<STRING>, ttl LONG, callBudgetRemaining LONG"
_MOMENTS = "ARRAY<ARRAY<LONG>>"
ATTEMPTS = struct(
    store=TEXT,
    kind=TEXT,
    seq=LONG,
    boot_ns=LONG,
    id=TEXT,
    sender=TEXT,
    said_to=TEXT,
    subject=TEXT,
    place=TEXT,
    rated=BooleanType(),
    was=TEXT,
    was_times=LONG,
    minute=LONG,
    created_ms=LONG,
    budget=TEXT,
    is_return=BooleanType(),
    record=LONG,
    would=TEXT,
    would_times=LONG,
    text=TEXT,
)
CHANGES = struct(store=TEXT, place=TEXT, kind=TEXT, seq=LONG, boot_ns=LONG, id=TEXT)
_CHANGE_KINDS = {
    "bus.handled": "handled",
    "bus.failed": "failed",
    "bus.dead": "dead",
    "bus.unregistered": "unregistered",
    "bus.served": "served",
    "bus.left": "left",
    "bus.breaker_reset": "reset",
    "bus.withdrawn": "withdrawn",
}


def attempts_of(journal: DataFrame) -> DataFrame:
    """Return every copy of a publish that the rules decided on, and every moment at which they refused one."""
    decided = journal.where(f.col("type").isin("bus.published", "bus.dead", "bus.withdrawn"))
    decided = decided.where(text(f.col("body"), "reserved").isNotNull())
    return _decided(decided).unionByName(_refused(journal.where(f.col("type") == "bus.refused")))


def changes_of(journal: DataFrame) -> DataFrame:
    """Return the records that changed a mailbox, its server or its breaker."""
    body, type_ = f.col("body"), f.col("type")
    is_closed = text(body, "reserved").isNotNull()
    kind = f.create_map(*[f.lit(word) for pair in _CHANGE_KINDS.items() for word in pair])[type_]
    kind = f.when(type_ == "bus.published", f.when(is_closed, "closed").otherwise("adopted")).otherwise(kind)
    is_restored = (type_ == "bus.redelivered") & (text(body, "adopted") == "true")
    kind = f.when(is_restored, "adopted").otherwise(kind)
    is_ack = (type_ == "bus.handled") & f.col("actor").isNull()
    is_unreported = (type_ == "bus.failed") & text(body, "boot_ns").isNull()  # recorded for a refused publish
    is_refused_letter = (type_ == "bus.dead") & is_closed
    known = journal.where((type_.isin("bus.published", *_CHANGE_KINDS) & ~is_refused_letter) | is_restored)
    return known.select(
        "store",
        text(body, "endpoint_hash").alias("place"),
        f.when(is_ack, "acked").when(is_unreported, "dead").otherwise(kind).alias("kind"),
        "seq",
        number(body, "boot_ns").alias("boot_ns"),
        f.col("ref").alias("id"),
    )


def boots_of(journal: DataFrame) -> DataFrame:
    """Return the position of every boot."""
    return journal.where(f.col("type") == "bus.booted").select("store", "seq")


def _decided(records: DataFrame) -> DataFrame:
    body, type_ = f.col("body"), f.col("type")
    reserved = f.from_json(text(body, "reserved"), "ARRAY<LONG>")
    stored = type_ == "bus.published"
    subject = f.coalesce(text(body, "envelope.subject"), text(body, "subject"), text(body, "endpoint"))
    is_unrouted = text(body, "endpoint_hash") == "unrouted"
    created_ms = f.coalesce(number(body, "created_at_ms"), _utc_ms(text(body, "envelope.createdAt")), f.lit(0))
    was = f.when(type_ == "bus.dead", text(body, "refused"))
    is_return = f.coalesce(text(body, "envelope.inReplyTo"), text(body, "in_reply_to")).isNotNull()
    kind = f.when(stored, "stored").when(type_ == "bus.withdrawn", "tried").otherwise("letter")
    return records.select(
        "store",
        kind.alias("kind"),
        reserved[0].alias("seq"),
        reserved[1].alias("boot_ns"),
        f.col("ref").alias("id"),
        f.col("actor").alias("sender"),
        f.coalesce(text(body, "published_to"), subject).alias("said_to"),
        subject.alias("subject"),
        f.when(~is_unrouted, text(body, "endpoint_hash")).alias("place"),
        (reserved[2] == 1).alias("rated"),
        was.alias("was"),
        f.when(was.isNotNull(), 1).otherwise(0).cast("long").alias("was_times"),
        whole(created_ms, _MINUTE_MS).alias("minute"),
        created_ms.alias("created_ms"),
        f.when(stored, _uncharged(text(body, "envelope.budget"), is_return))
        .otherwise(text(body, "budget"))
        .alias("budget"),
        is_return.alias("is_return"),
        f.col("seq").alias("record"),
        f.lit(None).cast("string").alias("would"),
        f.lit(0).cast("long").alias("would_times"),
        f.when(was.isNotNull(), text(body, "reason")).alias("text"),
    )


def _refused(records: DataFrame) -> DataFrame:
    body = f.col("body")
    moments = f.explode(f.from_json(text(body, "moments"), _MOMENTS))
    rows = records.select("*", moments.alias("moment"))
    subject = f.substring_index(text(body, "key"), " ", -1)
    is_rate, minute = f.col("ref") == "rate_limited", number(body, "minute")
    return rows.select(
        "store",
        f.lit("refused").alias("kind"),
        f.col("moment")[0].alias("seq"),
        f.col("moment")[1].alias("boot_ns"),
        f.lit("").alias("id"),
        f.col("actor").alias("sender"),
        subject.alias("said_to"),
        subject.alias("subject"),
        f.when(is_rate, mailbox_hash(subject)).otherwise(text(body, "endpoint_hash")).alias("place"),
        (is_rate | (text(body, "charged") == "true")).alias("rated"),
        f.col("ref").alias("was"),
        f.col("moment")[2].alias("was_times"),
        minute.alias("minute"),
        (minute * f.lit(_MINUTE_MS)).alias("created_ms"),
        f.lit(None).cast("string").alias("budget"),
        f.lit(False).alias("is_return"),
        f.col("seq").alias("record"),
        f.lit(None).cast("string").alias("would"),
        f.lit(0).cast("long").alias("would_times"),
        f.when(text(body, "by_dead_letters") == "true", FULL_OF_LETTERS).alias("text"),
    ).withColumn("rated", f.coalesce("rated", f.lit(False)))


def _uncharged(budget: Column, is_return: Column) -> Column:
    """Return the budget as the rules saw it, before the delivery to the endpoint was charged."""
    charged, cost = f.from_json(budget, _BUDGET), f.when(is_return, 0).otherwise(1)
    chain = charged["ancestorChain"]
    return f.to_json(
        f.struct(
            (charged["hopCount"] - cost).alias("hopCount"),
            charged["maxHops"].alias("maxHops"),
            f.slice(chain, 1, f.size(chain) - 1).alias("ancestorChain"),
            charged["ttl"].alias("ttl"),
            (charged["callBudgetRemaining"] + cost).alias("callBudgetRemaining"),
        )
    )


def _utc_ms(created_at: Column) -> Column:
    return f.unix_millis(f.to_timestamp(created_at))


def bus_journal(spark: SparkSession, lake: Lake) -> DataFrame:
    """Return the live records of every bus, with the name of its store."""
    journal = lake.table(spark, "bronze_journal")
    kept = journal.where(f.col("type").startswith("bus.") & ~f.col(LOST))
    stores = lake.table(spark, "bronze_epochs").select("epoch", f.col("root").alias("store"))
    return kept.join(f.broadcast(stores), "epoch")


_COLUMNS = ATTEMPTS.fieldNames()


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation."""

    #: Every attempt with `was` and `would`: the code of the refusal, or NULL if accepted.
    attempts: DataFrame

    @property
    def accepted(self) -> DataFrame:
        """One row per accepted message; `would` is the code with which the proposal refuses it."""
        stored = self.attempts.where(f.col("kind") == "stored")
        return stored.select("store", "record", "id", "sender", "subject", "place", "created_ms", "would", "text")

    @property
    def refusals(self) -> DataFrame:
        """Refusals per code, key and minute: the recorded number, and the number under the proposal."""
        was = self.attempts.where(f.col("was").isNotNull()).select(
            f.col("was").alias("code"), _key("was"), "minute", f.col("was_times").alias("was"), f.lit(0).alias("would")
        )
        would = self.attempts.where(f.col("would").isNotNull()).select(
            f.col("would").alias("code"),
            _key("would"),
            "minute",
            f.lit(0).alias("was"),
            f.col("would_times").alias("would"),
        )
        both = was.unionByName(would).groupBy("code", "key", "minute")
        return both.agg(f.sum("was").alias("was"), f.sum("would").alias("would")).where("was + would > 0")


def simulate_history(journal: DataFrame, proposal: Proposal) -> Simulation:
    """Simulate a journal with a column `store`; the rows of a store, across epochs, are ordered by seq."""
    attempts, changes, boots = attempts_of(journal), changes_of(journal), boots_of(journal)
    rated = _simulate_senders(attempts, boots, proposal)
    is_undecided = f.col("would").isNull() & f.col("place").isNotNull()
    decided = _simulate_mailboxes(rated.where(is_undecided), changes, boots, proposal)
    return Simulation(decided.unionByName(rated.where(~is_undecided)))


def compare(simulation: Simulation, limit: int) -> dict[str, Any]:
    """Return the differences between history and simulation: the tables in COMPARED, at most `limit` rows each."""
    attempts = simulation.attempts.cache()
    try:
        totals = simulation.refusals.groupBy("code").agg(f.sum("was").alias("was"), f.sum("would").alias("would"))
        refused = simulation.accepted.where("would IS NOT NULL").orderBy("created_ms", "id", "subject")
        changed = simulation.refusals.where("was <> would").orderBy("minute", "code", "key")
        frames = {"totals": totals.orderBy("code"), "accepted": refused.limit(limit), "refusals": changed.limit(limit)}
        rows = {kind: [list(row) for row in frame.select(*COMPARED[kind]).collect()] for kind, frame in frames.items()}
        count = simulation.accepted.agg(f.count("*"), f.count("would")).first()
    finally:
        attempts.unpersist()
    assert count is not None
    return {**rows, "messages": count[0], "would_be_refused": count[1]}


def _key(code: str) -> Any:
    subject = f.when(f.col(code) == "rate_limited", f.col("said_to")).otherwise(f.col("subject"))
    return f.concat_ws(" ", "sender", subject).alias("key")


def _simulate_senders(attempts: DataFrame, boots: DataFrame, proposal: Proposal) -> DataFrame:
    rows = attempts.unionByName(_spread(boots, attempts.select("store", "sender").distinct()), allowMissingColumns=True)
    config = proposal.reliability.rate_limit

    def simulate(group: pd.DataFrame) -> pd.DataFrame:
        records = _records(group)
        boots = [row["seq"] for row in records if row["kind"] == BOOTED]
        rows = [attempt_of(row) for row in records if row["kind"] != BOOTED]
        return _frame(simulate_sender(rows, boots, config), _store(records))

    return _without_nulls(rows).groupBy("store", "sender").applyInPandas(simulate, ATTEMPTS)


def _simulate_mailboxes(attempts: DataFrame, changes: DataFrame, boots: DataFrame, proposal: Proposal) -> DataFrame:
    rows = attempts.withColumn("is_attempt", f.lit(True))
    booted = _spread(boots, attempts.select("store", "place").distinct())
    for other in (changes, booted):
        rows = rows.unionByName(other.withColumn("is_attempt", f.lit(False)), allowMissingColumns=True)

    def simulate(group: pd.DataFrame) -> pd.DataFrame:
        records = _records(group)
        attempted = [attempt_of(row) for row in records if row["is_attempt"]]
        names = [name for name in CHANGES.fieldNames() if name not in ("store", "place")]
        changed = [Change(**{name: row[name] for name in names}) for row in records if not row["is_attempt"]]
        return _frame(simulate_mailbox(attempted, changed, proposal), _store(records))

    return _without_nulls(rows).groupBy("store", "place").applyInPandas(simulate, ATTEMPTS)


def _without_nulls(rows: DataFrame) -> DataFrame:
    """Replace NULLs in number columns: pandas would convert the column to floats, too coarse for nanoseconds."""
    return rows.fillna(0, subset=sorted(_NUMBERS)).fillna(False, subset=_FLAGS)


def _spread(boots: DataFrame, keys: DataFrame) -> DataFrame:
    """Return a row for each boot and each key of its store: a boot resets the state of every key."""
    return boots.join(keys, "store").withColumn("kind", f.lit(BOOTED))


def _records(group: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as dicts, with pandas' NULL values converted to None, 0 or False."""
    return [{str(name): _plain(str(name), value) for name, value in row.items()} for row in group.to_dict("records")]


def _plain(name: str, value: Any) -> Any:
    is_missing = value is None or value != value  # NaN alone differs from itself
    if name in _NUMBERS:
        return 0 if is_missing else int(value)
    if name == "is_attempt" or name in _FLAGS:
        return False if is_missing else bool(value)
    return None if is_missing else value


_FLAGS = ["rated", "is_return"]
_NUMBERS = {field.name for field in ATTEMPTS.fields if field.dataType.typeName() == "long"}


def _store(records: list[dict[str, Any]]) -> str:
    return str(records[0]["store"])


def _frame(rows: Iterator[Attempt], store: str) -> pd.DataFrame:
    import pandas as pd

    found = [asdict(row) | {"store": store} for row in rows]
    return pd.DataFrame(found, columns=_COLUMNS).astype(dict.fromkeys(sorted(_NUMBERS), "int64") if found else {})
