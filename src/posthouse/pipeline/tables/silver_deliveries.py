"""silver_deliveries: the state of each message for one reader, at the relay, on the bus and over Pinch.

Each row of silver_deliveries_facts is one change of one delivery; a record about several deliveries becomes several
facts. The state is that of the last fact that opens or ends the delivery, because `sent` may be recorded after an end
that overtook it. A delivery whose reader rotated its key stays as `moved` and continues in a row of the successor, with
the same state as before; counts of deliveries omit the moved row. The record of a removed bus endpoint names no
messages; the dead letters of its messages do.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import (
    BOOLEAN,
    LONG,
    TEXT,
    RefreshMode,
    Table,
    agent_of,
    complete,
    day,
    hour,
    mailbox_hash,
    number,
    struct,
    text,
)

KEYS = ("source", "mesh", "reader", "message_id")
FACTS_SCHEMA = struct(
    epoch=TEXT,
    seq=LONG,
    at_ns=LONG,
    fact=TEXT,
    source=TEXT,
    mesh=TEXT,
    # The node, the Pinch address, or the name of the bus mailbox.
    reader=TEXT,
    message_id=TEXT,
    recipient=TEXT,
    sender=TEXT,
    attempt=LONG,
    was_stored=BOOLEAN,
    reason=TEXT,
    handler_ms=LONG,
)
SCHEMA = struct(
    source=TEXT,
    mesh=TEXT,
    reader=TEXT,
    message_id=TEXT,
    recipient=TEXT,
    sender=TEXT,
    state=TEXT,
    epoch=TEXT,
    seq=LONG,
    opened_at_ns=LONG,
    sent_at_ns=LONG,
    ended_at_ns=LONG,
    openings=LONG,
    attempts=LONG,
    was_stored=BOOLEAN,
    handler_ms=LONG,
    reason=TEXT,
    day=TEXT,
    hour=TEXT,
    **{LOST: BOOLEAN},
)
_IDS, _BOOLS, _LONGS = "array<string>", "array<boolean>", "array<bigint>"
_MANY = ("delivery.confirmed", "delivery.expired", "delivery.purged", "delivery.blocked")
_ONE = ("delivery.rejected", "delivery.dead")
_AFTER = ("purged", "replaced")  # on the bus, these may name dead letters of a removed mailbox
MOVED = "moved"  # the state of a delivery that continues, and counts, under another key
_CONTINUED = "continued"  # the fact that opens, under the successor's key, a delivery that was sent to the former key
_OPENS = ("queued", "requeued", _CONTINUED)
_UNREGISTERED = "endpoint unregistered"  # the reason of dead letters of a removed endpoint
_BUS = {"bus.published": "queued", "bus.handled": "handled", "bus.failed": "failed", "bus.dead": "dead"}


def delivery_facts(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the facts of deliveries."""
    journal = inputs["bronze_journal"]
    parts = (_opened(journal), _sent(journal), _many(journal), _one(journal), _requeued(journal), _moved(journal))
    facts = _rows(*parts[0])
    for part in (*parts[1:], _bus(journal), _dead_letters(journal), _pinch(journal)):
        facts = facts.unionByName(_rows(*part))
    return facts


#: Rows, and the columns to derive from them.
_Part = tuple[DataFrame, dict[str, Column]]


def _opened(journal: DataFrame) -> _Part:
    body = f.col("body")
    rows = journal.where(f.col("type") == "message.accepted")
    nodes = f.concat(_labelled(body, "recipients", "queued"), _labelled(body, "blocked", "blocked"))
    opened = rows.withColumn("opened", f.explode(nodes))
    return opened, {
        "fact": f.col("opened.fact"),
        "reader": f.col("opened.node"),
        "message_id": f.col("ref"),
        "recipient": agent_of(f.col("opened.node"), _agent_in(text(body, "destination_ref"))),
        "sender": agent_of(f.col("actor"), text(body, "from_agent")),
    }


def _agent_in(destination: Column) -> Column:
    """Return the agent in the destination of a direct message, after the slash; NULL without one."""
    return f.when(f.instr(destination, "/") > 0, f.substring_index(destination, "/", -1))


def _labelled(body: Column, field: str, fact: str) -> Column:
    return f.transform(_ids(body, field), lambda node: f.struct(node.alias("node"), f.lit(fact).alias("fact")))


def _sent(journal: DataFrame) -> _Part:
    body = f.col("body")
    rows = journal.where(f.col("type") == "delivery.sent")
    zipped = f.arrays_zip(
        _array(body, "ids", _IDS).alias("id"),
        _array(body, "was_stored", _BOOLS).alias("was_stored"),
        _array(body, "attempts", _LONGS).alias("attempt"),
    )
    return rows.withColumn("each", f.explode(zipped)), {
        "fact": f.lit("sent"),
        "reader": f.col("actor"),
        "message_id": f.col("each.id"),
        "was_stored": f.col("each.was_stored"),
        "attempt": f.col("each.attempt"),
    }


def _many(journal: DataFrame) -> _Part:
    body = f.col("body")
    rows = journal.where(f.col("type").isin(*_MANY))
    ids, stored = _array(body, "ids", _IDS), _array(body, "was_stored", _BOOLS)
    zipped = f.arrays_zip(ids.alias("id"), f.coalesce(stored, f.array().cast(_BOOLS)).alias("was_stored"))
    return rows.withColumn("each", f.explode(zipped)), {
        "fact": f.substring_index("type", ".", -1),
        "reader": f.col("ref"),
        "message_id": f.col("each.id"),
        "was_stored": f.col("each.was_stored"),
    }


def _one(journal: DataFrame) -> _Part:
    return journal.where(f.col("type").isin(*_ONE)), {
        "fact": f.substring_index("type", ".", -1),
        "reader": f.col("actor"),
        "message_id": f.col("ref"),
        "attempt": number(f.col("body"), "attempts"),
        "reason": text(f.col("body"), "reason"),
    }


def _requeued(journal: DataFrame) -> _Part:
    return journal.where(f.col("type") == "delivery.requeued"), {
        "fact": f.lit("requeued"),
        "reader": text(f.col("body"), "recipient"),
        "message_id": f.col("ref"),
    }


def _moved(journal: DataFrame) -> _Part:
    """Return both sides of each move: the end under the former key, and the state under its successor."""
    body = f.col("body")
    fields = {"id": "ids", "state": "states", "sender": "senders", "agent": "agents"}
    zipped = f.arrays_zip(*[_ids(body, field).alias(name) for name, field in fields.items()])
    rows = journal.where(f.col("type") == "delivery.moved").withColumn("each", f.explode(zipped))
    state = f.when(f.col("each.state") == "sent", _CONTINUED).otherwise(f.col("each.state"))
    before = f.struct(text(body, "recipient").alias("node"), f.lit(MOVED).alias("fact"))
    after = f.struct(f.col("ref").alias("node"), state.alias("fact"))
    return rows.withColumn("side", f.explode(f.array(before, after))), {
        "fact": f.col("side.fact"),
        "reader": f.col("side.node"),
        "message_id": f.col("each.id"),
        "recipient": agent_of(f.col("side.node"), f.col("each.agent")),
        "sender": f.col("each.sender"),
    }


def _bus(journal: DataFrame) -> _Part:
    body = f.col("body")
    fact = f.create_map(*[f.lit(word) for pair in _BUS.items() for word in pair])[f.col("type")]
    return journal.where(f.col("type").isin(*_BUS)), {
        "fact": fact,
        "source": f.lit("bus"),
        "mesh": f.lit(""),
        "reader": _mailbox(body),
        "message_id": f.col("ref"),
        "recipient": text(body, "endpoint"),
        "sender": f.col("actor"),
        "reason": text(body, "reason"),
        "handler_ms": f.round(text(body, "handler_ms").cast("double")).cast("long"),
    }


def _dead_letters(journal: DataFrame) -> _Part:
    """Return the dead letters that were requeued as another message, or purged."""
    rows = journal.where(f.col("type").isin("bus.requeued", "bus.purged"))
    body, is_purged = f.col("body"), f.col("type") == "bus.purged"
    ids = f.coalesce(_array(body, "ids", _IDS), f.array("ref"))
    return rows.withColumn("id", f.explode(ids)), {
        "fact": f.when(is_purged, "purged").otherwise("replaced"),
        "source": f.lit("bus"),
        "mesh": f.lit(""),
        "reader": f.when(is_purged, f.col("ref")).otherwise(_mailbox(body)),
        "message_id": f.col("id"),
        "recipient": text(body, "endpoint"),
    }


def _mailbox(body: Column) -> Column:
    """Return the original mailbox of a message: dead letters of a removed endpoint are recorded under unrouted."""
    was_removed = text(body, "reason") == _UNREGISTERED
    return f.when(was_removed, mailbox_hash(text(body, "endpoint"))).otherwise(text(body, "endpoint_hash"))


def _pinch(journal: DataFrame) -> _Part:
    """Return the accepted envelopes; their later changes are delivery records, as for messages."""
    body = f.col("body")
    return journal.where(f.col("type") == "pinch.accepted"), {
        "fact": f.when(text(body, "blocked") == "true", "blocked").otherwise("queued"),
        "reader": text(body, "recipient"),
        "message_id": text(body, "id"),
        "sender": f.col("actor"),
    }


def _ids(body: Column, field: str) -> Column:
    """Return a list of texts in a body, empty if it is absent."""
    return f.coalesce(_array(body, field, _IDS), f.array().cast(_IDS))


def _array(body: Column, field: str, kind: str) -> Column:
    return f.from_json(text(body, field), kind)


def _rows(rows: DataFrame, values: dict[str, Column]) -> DataFrame:
    """Return the facts of a part, with NULL in the columns that it lacks."""
    is_pinch = f.col("mesh") == "pinch"
    given = {"source": f.when(is_pinch, "pinch").otherwise("relay"), "mesh": f.coalesce("mesh", f.lit(""))} | values
    given.setdefault("recipient", given["reader"])
    return complete(rows, FACTS_SCHEMA, given)


def deliveries(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per delivery."""
    kept = ~f.col(LOST)
    position = f.struct(kept.alias("kept"), "seq", "at_ns", "epoch")
    is_sent, opens = f.col("fact") == "sent", f.col("fact").isin(*_OPENS)
    last = f.struct(kept.alias("kept"), "seq", "fact", "at_ns", "reason", "epoch")
    folded = (
        inputs["silver_deliveries_facts"]
        .groupBy(*KEYS)
        .agg(
            f.min(f.when(~is_sent, f.struct(f.col(LOST).alias("lost"), "seq", "at_ns"))).alias("first"),
            f.max(f.when(~is_sent, last)).alias("last"),
            f.max(f.when(is_sent, position)).alias("last_sent"),
            f.min(f.when(is_sent & kept, f.struct("seq", "at_ns", "was_stored"))).alias("first_sent"),
            f.sum(f.when(opens & kept, 1).otherwise(0)).cast("long").alias("openings"),
            f.max(f.when(kept, f.col("attempt"))).alias("attempts"),
            f.max(f.when(kept, f.col("was_stored"))).alias("was_stored"),
            f.max(f.when(kept, f.col("handler_ms"))).alias("handler_ms"),
            f.max("sender").alias("sender"),
            f.max("recipient").alias("recipient"),
            f.max(~f.col("fact").isin("sent", *_AFTER)).alias("is_known"),
        )
    )
    return folded.where("is_known").select(*_columns())


def _columns() -> list[Column]:
    is_open = f.col("last.fact").isin(*_OPENS)
    is_later = (f.col("last_sent.seq") > f.col("last.seq")) & f.col("last_sent.kept")
    was_sent = f.coalesce(is_later, f.lit(False)) | (f.col("last.fact") == _CONTINUED)
    opened_at_ns = f.col("first.at_ns")
    return [
        *[f.col(name) for name in (*KEYS, "recipient", "sender")],
        f.when(is_open & was_sent, "sent").when(is_open, "queued").otherwise(f.col("last.fact")).alias("state"),
        f.col("last.epoch").alias("epoch"),
        f.col("first.seq").alias("seq"),
        opened_at_ns.alias("opened_at_ns"),
        f.col("first_sent.at_ns").alias("sent_at_ns"),
        f.when(~is_open, f.col("last.at_ns")).alias("ended_at_ns"),
        *[f.col(name) for name in ("openings", "attempts", "was_stored", "handler_ms")],
        f.col("last.reason").alias("reason"),
        day(opened_at_ns).alias("day"),
        hour(opened_at_ns).alias("hour"),
        (~f.col("last.kept")).alias(LOST),
    ]


FACTS = Table(
    "silver_deliveries_facts", ("bronze_journal",), KEYS, FACTS_SCHEMA, delivery_facts, RefreshMode.APPEND_FACTS
)
TABLE = Table("silver_deliveries", (FACTS.name,), KEYS, SCHEMA, deliveries, RefreshMode.FOLD_KEYS)
