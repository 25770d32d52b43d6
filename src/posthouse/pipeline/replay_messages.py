"""Replay messages: select them from the lake and send them again, to a topic or to a subject of the bus.

A named cursor in the lake stores the progress of a replay. It is written after a batch was accepted, never before,
and the target recognizes messages it already has, so each message arrives once even if the replay is killed. A name
belongs to one selection and one destination; other options with the same name are refused. A replay skips sealed
messages and messages that a restore dropped.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from posthouse.bus import Bus
from posthouse.client import Client
from posthouse.files import private_dir, write_atomic
from posthouse.journal.digest import Record
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.event import MESSAGE
from posthouse.model.limits import SECOND_NS
from posthouse.model.subjects import validate_subject, validate_topic
from posthouse.pipeline.connector.delivery import Delivery
from posthouse.pipeline.connector.sink_rows import SinkOptions, SinkRow
from posthouse.pipeline.query_guard import check_condition
from posthouse.pipeline.session.spark import spark_reason
from posthouse.pipeline.tables.bronze import LOST

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


DIRECTORY = "replays"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ReplayOptions(msgspec.Struct, frozen=True):
    """The selection and the destination of a replay."""

    #: An SQL condition on silver_messages.
    where: str
    #: A #topic, or a subject of the bus.
    to: str
    #: The mesh of a topic; None for the bus.
    mesh: str | None = None


class ReplayCursor(msgspec.Struct, frozen=True):
    """The position after the last replayed message. Stored as JSON in the lake: keep the encoded names."""

    options: ReplayOptions = msgspec.field(name="terms")
    at_ns: int = -1
    epoch: str = ""
    seq: int = -1
    #: The number of messages sent so far.
    sent: int = 0
    #: The head of the bus's journal when the cursor was written.
    bus_seq: int = 0

    @property
    def position(self) -> tuple[int, str, int]:
        return self.at_ns, self.epoch, self.seq


class ReplayCursors:
    """The stored cursors of a lake."""

    def __init__(self, lake: Path) -> None:
        self._directory = lake / DIRECTORY

    def begin(self, name: str, options: ReplayOptions) -> ReplayCursor:
        """Return the stored cursor, or else a new one; raise replay_cursor_differs if the stored options differ."""
        path = self._path(name)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=ReplayCursor)
        except FileNotFoundError:
            return ReplayCursor(options)
        except msgspec.DecodeError as fault:
            raise error("lake_damaged", table=f"{DIRECTORY}/{path.name}", reason=str(fault)) from fault
        for field in ReplayOptions.__struct_fields__:
            was = getattr(found.options, field)
            if was != getattr(options, field):
                raise error("replay_cursor_differs", name=name, field=field, was=was)
        return found

    def save(self, name: str, cursor: ReplayCursor) -> None:
        """Store a cursor."""
        private_dir(self._directory)
        write_atomic(self._path(name), msgspec.json.encode(cursor))

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise error("usage", text=f"{name!r} is not a valid replay name", hint="Use letters, digits, - and _.")
        return self._directory / f"{name}.json"


#: The columns of selected messages, in order.
COLUMNS = ("at_ns", "epoch", "seq", "message_id", "source", "sender", "body")
INPUTS = ("silver_messages", "bronze_events", "bronze_journal")
_POSITION = ("epoch", "seq")


def select_messages(inputs: Mapping[str, DataFrame], where: str, after: ReplayCursor) -> DataFrame:
    """Return the matching messages after a cursor.

    Raise query_failed if the condition is not valid SQL, and query_refused if it does more than compute from the
    columns of a message.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    messages = inputs["silver_messages"].where(~f.col(LOST))
    check_condition(messages.sparkSession, where)
    try:
        chosen = messages.where(where)
    except PySparkException as failure:
        raise error("query_failed", reason=spark_reason(failure)) from failure
    chosen = chosen.where(_is_after(after)).select("at_ns", *_POSITION, "message_id", "source", "sender")
    bodies = _contents(inputs["bronze_events"]).unionByName(_payloads(inputs["bronze_journal"]))
    joined = chosen.join(bodies, list(_POSITION), "inner").where(f.col("body").isNotNull())
    return joined.select(*COLUMNS).orderBy("at_ns", *_POSITION)


def _is_after(after: ReplayCursor) -> Column:
    from pyspark.sql import functions as f

    given = f.struct(*(f.lit(value).alias(name) for value, name in zip(after.position, ("a", "e", "s"), strict=True)))
    return f.struct(f.col("at_ns").alias("a"), f.col("epoch").alias("e"), f.col("seq").alias("s")) > given


def _contents(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    read = f.from_json("event", "struct<tags: array<array<string>>, content: string>")
    is_sealed = f.exists(f.col("read.tags"), lambda tag: f.get(tag, f.lit(0)) == "enc")
    found = events.where((f.col("kind") == MESSAGE) & f.col("event").isNotNull()).withColumn("read", read)
    return found.where(~is_sealed).select(*_POSITION, f.col("read.content").alias("body"))


def _payloads(journal: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    found = journal.where(f.col("type") == "bus.published")
    return found.select(*_POSITION, f.get_json_object("body", "$.envelope.payload").alias("body"))


class PastMessage(msgspec.Struct, frozen=True):
    """A message from the lake."""

    at_ns: int
    epoch: str
    seq: int
    message_id: str
    source: str
    sender: str | None
    body: str

    @property
    def key(self) -> str:
        """Identifies the message within a replay."""
        return f"{self.epoch}/{self.seq}/{self.message_id}"

    def origin(self) -> dict[str, Any]:
        """Return the fields that mark a replayed message and identify the original."""
        return {"replay_of": self.message_id, "replay_sender": self.sender, "replay_at_ns": str(self.at_ns)}


class SendResult(NamedTuple):
    """The result of sending a batch."""

    #: Messages that the target already had.
    duplicates: int
    #: Readers whose queue was full.
    not_queued: int = 0


class ReplayTarget(Protocol):
    """The destination of a replay."""

    async def resume(self, cursor: ReplayCursor) -> None:
        """Find the messages that an interrupted replay sent after it had written this cursor."""
        ...

    async def send(self, messages: Sequence[PastMessage]) -> SendResult:
        """Send messages in order."""
        ...

    async def journal_head(self) -> int:
        """Return the head of the target's journal; 0 if `resume` does not need it."""
        ...


class TopicTarget:
    """A topic of a mesh."""

    def __init__(self, client: Client, options: SinkOptions, topic: str) -> None:
        self._delivery = Delivery(client, options)
        self._to = f"#{validate_topic(topic)}"

    async def resume(self, cursor: ReplayCursor) -> None:
        """Do nothing: the relay recognizes repeated messages."""

    async def send(self, messages: Sequence[PastMessage]) -> SendResult:
        rows = [SinkRow(old.key, old.body, to=self._to, meta=json.dumps(old.origin())) for old in messages]
        done = await self._delivery.send(rows)
        return SendResult(done.duplicates, done.not_queued)

    async def journal_head(self) -> int:
        return 0


class BusTarget:
    """A subject of a bus."""

    def __init__(self, bus: Bus, name: str, subject: str) -> None:
        self._bus = bus
        self._subject = validate_subject(subject)
        self._sender = f"replay.{name}"
        self._known: set[str] = set()

    async def resume(self, cursor: ReplayCursor) -> None:
        after = cursor.bus_seq
        while records := await self._bus.read_journal(after):
            self._known |= {key for record in records if (key := self._key(record)) is not None}
            after = records[-1].seq

    async def send(self, messages: Sequence[PastMessage]) -> SendResult:
        known = 0
        for old in messages:
            if old.key in self._known:
                known += 1
                continue
            payload = {"content": _value(old.body), "platformData": {"replayKey": old.key} | old.origin()}
            result = await self._bus.publish(self._subject, payload, from_=self._sender)
            if not result.delivered_to:
                reason = "; ".join(entry.text for entry in result.rejected) or "no endpoint matches"
                raise error("replay_target_invalid", to=self._subject, reason=reason)
        return SendResult(known)

    async def journal_head(self) -> int:
        return await self._bus.journal_head()

    def _key(self, record: Record) -> str | None:
        """Return the key of a message that this replay published; None for other records."""
        if record.type != "bus.published" or record.actor != self._sender:
            return None
        key = record.decoded_body()["envelope"]["payload"]["platformData"]["replayKey"]
        return str(key)


def _value(body: str) -> Any:
    """Return the JSON value of a payload, or the text unchanged if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body


BATCH = 100  # messages per stored cursor
_BATCHES_PER_S = 4  # spreads a low rate evenly instead of in bursts


class Replayed(NamedTuple):
    """The progress of a replay."""

    #: Messages sent in this run.
    sent: int
    #: How many of them the target already had.
    duplicates: int
    #: Messages sent since the replay of this name started.
    total: int
    #: Readers of a topic that missed a message because their queue was full.
    not_queued: int = 0


async def replay(
    messages: Iterator[PastMessage],
    target: ReplayTarget,
    cursors: ReplayCursors,
    name: str,
    cursor: ReplayCursor,
    clock: Clock,
    *,
    rate: float | None = None,
    on_batch: Callable[[Replayed], None] | None = None,
) -> Replayed:
    """Send messages, at most `rate` per second, and store the cursor after each batch."""
    await target.resume(cursor)
    done = Replayed(0, 0, cursor.sent)
    started_ns = clock.boot_ns()
    size = BATCH if rate is None else max(1, min(BATCH, int(rate / _BATCHES_PER_S)))
    while batch := await asyncio.to_thread(lambda: list(islice(messages, size))):
        result = await target.send(batch)
        done = Replayed(
            done.sent + len(batch),
            done.duplicates + result.duplicates,
            done.total + len(batch),
            done.not_queued + result.not_queued,
        )
        cursor = await _advanced(cursor, batch[-1], done.total, target)
        await asyncio.to_thread(cursors.save, name, cursor)
        if on_batch is not None:
            on_batch(done)
        if rate is not None:
            await _throttle(clock, started_ns, done.sent / rate)
    return done


async def _advanced(cursor: ReplayCursor, last: PastMessage, sent: int, target: ReplayTarget) -> ReplayCursor:
    return msgspec.structs.replace(
        cursor, at_ns=last.at_ns, epoch=last.epoch, seq=last.seq, sent=sent, bus_seq=await target.journal_head()
    )


async def _throttle(clock: Clock, started_ns: int, due_s: float) -> None:
    elapsed_s = (clock.boot_ns() - started_ns) / SECOND_NS
    if due_s > elapsed_s:
        await asyncio.sleep(due_s - elapsed_s)
