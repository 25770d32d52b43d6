"""silver_messages: every message that a relay, a bus, the Pinch wire or a host accepted, with its own metadata.

It is folded from silver_messages_facts. A message of the relay has two facts: `accepted` (from the journal) and
`content` (from the event: reply, conversation, priority and usage; never the body). A message of the bus has one fact
per endpoint that it reached, because the record holds the whole envelope. A Pinch message has one fact, because its
content is opaque. Mail between agents of one host, which no relay sees, has one fact, from the host's outbox.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType

from posthouse.model.event import MESSAGE
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
    join,
    number,
    struct,
    text,
)

ACCEPTED, CONTENT = "accepted", "content"
_MAX_TOKENS = 10**12  # of one message: sums of millions of messages stay below 2**63
_MAX_USD = 10**9  # of one message
KEYS = ("source", "message_id")
_POSITION = struct(epoch=TEXT, seq=LONG, at_ns=LONG, fact=TEXT, source=TEXT, message_id=TEXT)
_ACCEPTED = struct(
    mesh=TEXT,
    sender=TEXT,
    agent=TEXT,
    destination_kind=TEXT,
    destination=TEXT,
    client_message_id=TEXT,
    requeued_from=TEXT,
    size=LONG,
    recipients=LONG,
    mentions=LONG,
)
_CONTENT = struct(
    reply_to=TEXT,
    conversation_id=TEXT,
    priority=TEXT,
    model=TEXT,
    input_tokens=LONG,
    output_tokens=LONG,
    cached_tokens=LONG,
    cost_usd=DoubleType(),
    task=TEXT,
)
FACTS_SCHEMA = join(_POSITION, _ACCEPTED, _CONTENT)
SCHEMA = join(
    struct(source=TEXT, message_id=TEXT, epoch=TEXT, seq=LONG, at_ns=LONG),
    _ACCEPTED,
    _CONTENT,
    struct(day=TEXT, hour=TEXT, **{LOST: BOOLEAN}),
)
_TAGS = "struct<tags: array<array<string>>>"


def message_facts(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the facts of messages."""
    journal, events = inputs["bronze_journal"], inputs["bronze_events"]
    parts = (_relay(journal), _contents(events), _bus(journal), _pinch(journal), _host(journal))
    facts = parts[0]
    for part in parts[1:]:
        facts = facts.unionByName(part)
    return facts


def _relay(journal: DataFrame) -> DataFrame:
    body = f.col("body")
    return _rows(
        journal.where(f.col("type") == "message.accepted"),
        ACCEPTED,
        "relay",
        f.col("ref"),
        mesh=f.col("mesh"),
        sender=f.col("actor"),
        agent=agent_of(f.col("actor"), text(body, "from_agent")),
        destination_kind=text(body, "destination_kind"),
        destination=text(body, "destination_ref"),
        client_message_id=text(body, "client_message_id"),
        size=number(body, "size"),
        recipients=_length(body, "recipients"),
        mentions=_length(body, "mentions"),
        reply_to=text(body, "reply_to"),
    )


def _contents(events: DataFrame) -> DataFrame:
    found = events.where((f.col("kind") == MESSAGE) & f.col("event").isNotNull())
    tagged = found.withColumn("tags", f.from_json("event", _TAGS)["tags"])
    meta = _tag("meta")
    return _rows(
        tagged,
        CONTENT,
        "relay",
        f.col("id"),
        conversation_id=f.coalesce(text(meta, "conversation_id"), text(meta, "conversationId")),
        priority=f.coalesce(_tag("priority"), f.lit("next")),
        **_usage(meta, "usage"),
    )


def _bus(journal: DataFrame) -> DataFrame:
    body = f.col("body")
    payload = "envelope.payload"
    return _rows(
        journal.where(f.col("type") == "bus.published"),
        ACCEPTED,
        "bus",
        f.col("ref"),
        sender=f.col("actor"),
        agent=f.col("actor"),
        destination_kind=f.lit("endpoint"),
        destination=f.coalesce(text(body, "published_to"), text(body, "endpoint")),
        requeued_from=text(body, "requeued_from"),
        size=f.octet_length(text(body, "envelope")).cast("long"),
        recipients=f.lit(1).cast("long"),
        mentions=f.lit(0).cast("long"),
        reply_to=text(body, f"{payload}.correlationId"),
        conversation_id=text(body, f"{payload}.conversationId"),
        **_usage(body, f"{payload}.usage"),
    )


def _pinch(journal: DataFrame) -> DataFrame:
    body = f.col("body")
    return _rows(
        journal.where(f.col("type") == "pinch.accepted"),
        ACCEPTED,
        "pinch",
        text(body, "id"),
        mesh=f.coalesce(f.col("mesh"), f.lit("pinch")),
        sender=f.col("actor"),
        agent=f.col("actor"),
        destination_kind=f.lit("dm"),
        destination=text(body, "recipient"),
        client_message_id=f.col("ref"),
        size=number(body, "size"),
        recipients=f.lit(1).cast("long"),
        mentions=f.lit(0).cast("long"),
    )


def _host(journal: DataFrame) -> DataFrame:
    body = f.col("body")
    node = text(body, "destination")
    return _rows(
        journal.where((f.col("type") == "outbox.queued") & (text(body, "local") == "true")),
        ACCEPTED,
        "host",
        f.col("ref"),
        mesh=f.col("mesh"),
        sender=node,
        agent=agent_of(node, text(body, "from_agent")),
        destination_kind=f.lit("agent"),
        destination=agent_of(node, text(body, "to_agent")),
        client_message_id=text(body, "client_message_id"),
        size=number(body, "size"),
        recipients=f.lit(1).cast("long"),
        mentions=f.lit(0).cast("long"),
        **_usage(body, "usage"),
    )


def _rows(rows: DataFrame, fact: str, source: str, message_id: Column, **values: Column) -> DataFrame:
    given = {"fact": f.lit(fact), "source": f.lit(source), "message_id": message_id} | values
    return complete(rows, FACTS_SCHEMA, given)


def _length(body: Column, field: str) -> Column:
    return f.coalesce(f.json_array_length(text(body, field)), f.lit(0)).cast("long")


def _tag(name: str) -> Column:
    """Return the first value of the first tag with a name."""
    named = f.filter(f.col("tags"), lambda tag: f.get(tag, f.lit(0)) == name)
    return f.get(f.get(named, f.lit(0)), f.lit(1))


def _usage(body: Column, at: str) -> dict[str, Column]:
    """Return the usage that a message claims; its form is unchecked."""
    return {
        "model": text(body, f"{at}.model"),
        "input_tokens": _claimed(body, f"{at}.input_tokens", f"{at}.inputTokens", "long", _MAX_TOKENS),
        "output_tokens": _claimed(body, f"{at}.output_tokens", f"{at}.outputTokens", "long", _MAX_TOKENS),
        "cached_tokens": _claimed(body, f"{at}.cached_tokens", f"{at}.cachedTokens", "long", _MAX_TOKENS),
        "task": text(body, f"{at}.task"),
        "cost_usd": _claimed(body, f"{at}.cost_usd", f"{at}.costUsd", "double", _MAX_USD),
    }


def _claimed(body: Column, field: str, camel: str, kind: str, largest: int) -> Column:
    """Return a number from 0 to `largest`, else NULL: no sender can make a run fail, or lower the cost of a day."""
    value = f.coalesce(text(body, field), text(body, camel)).try_cast(kind)
    return f.when(value.between(0, largest), value)


def messages(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per message, with its first acceptance that no restore dropped, or else its first one."""
    is_accepted = f.col("fact") == ACCEPTED
    accepted = f.struct(LOST, "at_ns", "seq", "epoch", *_ACCEPTED.fieldNames())
    readers = f.when(is_accepted, f.col("recipients"))
    folded = (
        inputs["silver_messages_facts"]
        .groupBy(*KEYS)
        .agg(
            f.min(f.when(is_accepted, accepted)).alias("accepted"),
            f.coalesce(f.sum(f.when(~f.col(LOST), readers)), f.sum(readers)).alias("readers"),
            *[f.max(name).alias(name) for name in _CONTENT.fieldNames()],
        )
    )
    at_ns = f.col("accepted.at_ns")
    return folded.where(f.col("accepted").isNotNull()).select(
        *KEYS,
        *[
            (f.col("readers") if name == "recipients" else f.col(f"accepted.{name}")).alias(name)
            for name in ("epoch", "seq", "at_ns", *_ACCEPTED.fieldNames())
        ],
        *_CONTENT.fieldNames(),
        day(at_ns).alias("day"),
        hour(at_ns).alias("hour"),
        f.col(f"accepted.{LOST}").alias(LOST),
    )


FACTS = Table(
    "silver_messages_facts",
    ("bronze_journal", "bronze_events"),
    KEYS,
    FACTS_SCHEMA,
    message_facts,
    RefreshMode.APPEND_FACTS,
)
TABLE = Table("silver_messages", (FACTS.name,), KEYS, SCHEMA, messages, RefreshMode.FOLD_KEYS)
