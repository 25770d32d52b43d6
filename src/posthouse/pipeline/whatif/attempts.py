"""From the journal of a bus to what its rules decided about: attempts, and changes in between.

Only what the rules look at is taken out of the bodies, by Spark itself; payloads are never parsed. `reserved` and
`moments` place every decision between two records of the journal, so state is followed exactly as it was.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType

from posthouse.pipeline.tables.columns import LONG, TEXT, number, struct, text, whole

_MINUTE_MS = 60_000
_HASH_DIGITS = 12
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
    """Return every copy of a publish that the rules decided about, and every moment in which they refused."""
    decided = journal.where(f.col("type").isin("bus.published", "bus.dead", "bus.withdrawn"))
    decided = decided.where(text(f.col("body"), "reserved").isNotNull())
    return _decided(decided).unionByName(_refused(journal.where(f.col("type") == "bus.refused")))


def changes_of(journal: DataFrame) -> DataFrame:
    """Return the records that changed a mailbox, its server or its breaker."""
    body, type_ = f.col("body"), f.col("type")
    is_closed = text(body, "reserved").isNotNull()
    kind = f.create_map(*[f.lit(word) for pair in _CHANGE_KINDS.items() for word in pair])[type_]
    kind = f.when(type_ == "bus.published", f.when(is_closed, "closed").otherwise("adopted")).otherwise(kind)
    is_ack = (type_ == "bus.handled") & f.col("actor").isNull()
    is_letter = (type_ == "bus.dead") & is_closed
    known = journal.where(type_.isin("bus.published", *_CHANGE_KINDS) & ~is_letter)
    return known.select(
        "store",
        text(body, "endpoint_hash").alias("place"),
        f.when(is_ack, "acked").otherwise(kind).alias("kind"),
        "seq",
        number(body, "boot_ns").alias("boot_ns"),
        f.col("ref").alias("id"),
    )


def boots_of(journal: DataFrame) -> DataFrame:
    """Return where another boot began."""
    return journal.where(f.col("type") == "bus.booted").select("store", "seq")


def _decided(records: DataFrame) -> DataFrame:
    body, type_ = f.col("body"), f.col("type")
    reserved = f.from_json(text(body, "reserved"), "ARRAY<LONG>")
    stored = type_ == "bus.published"
    subject = f.coalesce(text(body, "envelope.subject"), text(body, "subject"), text(body, "endpoint"))
    is_unrouted = text(body, "endpoint_hash") == "unrouted"
    created_ms = f.coalesce(number(body, "created_at_ms"), _utc_ms(text(body, "envelope.createdAt")), f.lit(0))
    was = f.when(type_ == "bus.dead", text(body, "refused"))
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
        f.when(stored, _uncharged(text(body, "envelope.budget"))).otherwise(text(body, "budget")).alias("budget"),
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
    own_place = f.substring(f.sha2(subject, 256), 1, _HASH_DIGITS)
    return rows.select(
        "store",
        f.lit("refused").alias("kind"),
        f.col("moment")[0].alias("seq"),
        f.col("moment")[1].alias("boot_ns"),
        f.lit("").alias("id"),
        f.col("actor").alias("sender"),
        subject.alias("said_to"),
        subject.alias("subject"),
        f.when(is_rate, own_place).otherwise(text(body, "endpoint_hash")).alias("place"),
        (is_rate | (text(body, "charged") == "true")).alias("rated"),
        f.col("ref").alias("was"),
        f.col("moment")[2].alias("was_times"),
        minute.alias("minute"),
        (minute * f.lit(_MINUTE_MS)).alias("created_ms"),
        f.lit(None).cast("string").alias("budget"),
        f.col("seq").alias("record"),
        f.lit(None).cast("string").alias("would"),
        f.lit(0).cast("long").alias("would_times"),
        f.lit(None).cast("string").alias("text"),
    ).withColumn("rated", f.coalesce("rated", f.lit(False)))


def _uncharged(budget: Column) -> Column:
    """Return the budget as it was judged, before reaching the endpoint was charged to it."""
    charged = f.from_json(budget, _BUDGET)
    chain = charged["ancestorChain"]
    return f.to_json(
        f.struct(
            (charged["hopCount"] - 1).alias("hopCount"),
            charged["maxHops"].alias("maxHops"),
            f.slice(chain, 1, f.size(chain) - 1).alias("ancestorChain"),
            charged["ttl"].alias("ttl"),
            (charged["callBudgetRemaining"] + 1).alias("callBudgetRemaining"),
        )
    )


def _utc_ms(created_at: Column) -> Column:
    return f.unix_millis(f.to_timestamp(created_at))
