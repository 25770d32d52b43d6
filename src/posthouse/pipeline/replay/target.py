"""Where a replay goes: a topic through the sink, or a subject of the bus of this host. Each takes a row once.

A relay knows a row by its client_message_id. A bus knows no such ids, but its journal tells what was published: what it
has from this replay behind the cursor is not published again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from posthouse.bus import Bus
from posthouse.client import Client
from posthouse.journal.read import read_after, read_extent
from posthouse.journal.record import Record
from posthouse.model.errors import error
from posthouse.model.subjects import validate_subject, validate_topic
from posthouse.pipeline.replay.cursor import Cursor
from posthouse.pipeline.sink.deliver import Delivery
from posthouse.pipeline.sink.options import SinkOptions
from posthouse.pipeline.sink.row import SinkRow

_PAGE = 1_000


class Old(msgspec.Struct, frozen=True):
    """A message of the past."""

    at_ns: int
    epoch: str
    seq: int
    message_id: str
    source: str
    sender: str | None
    body: str

    @property
    def key(self) -> str:
        """What names it within a replay."""
        return f"{self.epoch}/{self.seq}/{self.message_id}"

    def origin(self) -> dict[str, Any]:
        """Return what tells its reader that it is a replay, and of what."""
        return {"replay_of": self.message_id, "replay_sender": self.sender, "replay_at_ns": str(self.at_ns)}


class Taken(NamedTuple):
    """What became of messages."""

    #: the target had them already
    duplicates: int
    #: readers whose queue was full
    not_queued: int = 0


class Target(Protocol):
    """Where messages go."""

    async def resume(self, cursor: Cursor) -> None:
        """Learn what was sent behind a cursor."""
        ...

    async def send(self, messages: Sequence[Old]) -> Taken:
        """Send messages in order and return what became of them."""
        ...

    async def place(self) -> int:
        """Return how far the journal behind the target is, 0 when that does not matter."""
        ...


class TopicTarget:
    """A topic of a mesh."""

    def __init__(self, client: Client, options: SinkOptions, topic: str) -> None:
        self._delivery = Delivery(client, options)
        self._to = f"#{validate_topic(topic)}"

    async def resume(self, cursor: Cursor) -> None:
        """Nothing to learn: the relay knows."""

    async def send(self, messages: Sequence[Old]) -> Taken:
        rows = [SinkRow(old.key, old.body, to=self._to, meta=json.dumps(old.origin())) for old in messages]
        done = await self._delivery.send(rows)
        return Taken(done.duplicates, done.not_queued)

    async def place(self) -> int:
        return 0


class BusTarget:
    """A subject of a bus."""

    def __init__(self, bus: Bus, name: str, subject: str) -> None:
        self._bus = bus
        self._subject = validate_subject(subject)
        self._sender = f"replay.{name}"
        self._known: set[str] = set()

    async def resume(self, cursor: Cursor) -> None:
        after = cursor.bus_seq
        while records := await self._bus.session.store.pool.run(partial(read_after, seq=after, limit=_PAGE)):
            self._known |= {key for record in records if (key := self._key(record)) is not None}
            after = records[-1].seq

    async def send(self, messages: Sequence[Old]) -> Taken:
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
        return Taken(known)

    async def place(self) -> int:
        return (await self._bus.session.store.pool.run(read_extent)).head

    def _key(self, record: Record) -> str | None:
        """Return the key of a message that this replay has published."""
        if record.type != "bus.published" or record.actor != self._sender:
            return None
        key = record.decoded_body()["envelope"]["payload"]["platformData"]["replayKey"]
        return str(key)


def _value(body: str) -> Any:
    """Return a payload as it was; a text that is no JSON stays a text."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
