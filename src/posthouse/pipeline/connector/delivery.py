"""Sign the rows of a sink run and send them to the relay. Runs on the driver, which has the key.

A row of a run always produces the same request: client_message_id is a hash of run id and row key, and sealing is
deterministic, so the relay recognizes a repeated row and returns the message that it already has. All rows become
events before the first one is sent, so an invalid row fails the run before it has an effect.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3

from posthouse.client import Client, ClientOptions
from posthouse.client.messages.sender import TOPIC_MARK, Composer, Request
from posthouse.client.trust.pins import Pins
from posthouse.client.trust.signing import Signer, sign_event, with_mesh
from posthouse.keys import keyfile
from posthouse.keys.sealing import BOX, seal_box_repeatably
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event, check_structure
from posthouse.model.ulid import UlidGenerator
from posthouse.pipeline.connector.sink_rows import SinkOptions, SinkRow

_Tags = list[tuple[str, ...]]


def message_id_of(run_id: str, row_key: str) -> str:
    """Return the client_message_id of a row."""
    return "pipeline-" + blake3(json.dumps([run_id, row_key]).encode()).hexdigest()[:48]


class EventBuilder:
    """Builds the events of one run."""

    def __init__(self, signer: Signer, clock: Clock, run_id: str, mesh: str) -> None:
        self._signer = signer
        self._composer = Composer(signer, UlidGenerator(clock))
        self._run_id = run_id
        self._mesh = mesh

    def event(self, row: SinkRow, destination: str | None) -> Event:
        """Return the event of a row; `destination` is the #topic or node id of a message, else None."""
        return self._message(row, destination) if destination is not None else self._other(row)

    def _message(self, row: SinkRow, destination: str) -> Event:
        client_message_id = message_id_of(self._run_id, row.row_key)
        given = self._composer.request(
            destination,
            row.body,
            self._mesh,
            {
                "client_message_id": client_message_id,
                "reply_to": row.reply_to,
                "priority": row.priority,
                "meta": _object(row),
                "is_sealed": False,
            },
        )
        return self._composer.seal_and_sign(given) if given.node is None else self._sealed(given, given.node)

    def _sealed(self, request: Request, reader: str) -> Event:
        key = self._signer.key
        content = seal_box_repeatably(key, reader, request.body.encode(), request.client_message_id)
        clear = self._composer.seal_and_sign(request)
        tags = [("enc", BOX), *(tag for tag in clear.tags)]
        return sign_event(key, clear.kind, content, tags, clear.created_at_ns)

    def _other(self, row: SinkRow) -> Event:
        created_at_ns = row.created_at_ns
        assert created_at_ns is not None  # read_row requires it
        event = sign_event(self._signer.key, row.kind, row.body, with_mesh(_tags(row), self._mesh), created_at_ns)
        check_structure(event)
        return event


def _object(row: SinkRow) -> dict[str, object] | None:
    if row.meta is None:
        return None
    try:
        return msgspec.json.decode(row.meta, type=dict[str, object])
    except msgspec.DecodeError as fault:
        raise error("sink_rows_invalid", reason=f"meta of row {row.row_key!r}: {fault}") from fault


def _tags(row: SinkRow) -> _Tags:
    if row.tags is None:
        return []
    try:
        return msgspec.json.decode(row.tags, type=_Tags)
    except msgspec.DecodeError as fault:
        raise error("sink_rows_invalid", reason=f"tags of row {row.row_key!r}: {fault}") from fault


class Delivered(NamedTuple):
    """The result of sending rows."""

    rows: int
    #: Rows that the relay already had.
    duplicates: int
    #: Readers of a topic that missed a message because their queue was full.
    not_queued: int


def open_client(options: SinkOptions) -> Client:
    """Create the client of a run with the key from its file, without connecting."""
    tls_ca = None if options.tls_ca is None else Path(options.tls_ca)
    return Client(
        options.relay,
        keyfile.load(options.key_path()),
        mesh=options.mesh,
        pins=Pins(Path(options.home) / "pins.json"),
        options=ClientOptions(tls_ca=tls_ca, allow_plain=options.allow_plain),
    )


class Delivery:
    """Send the rows of one run over one client."""

    def __init__(self, client: Client, options: SinkOptions) -> None:
        clock = system_clock()
        self._client = client
        self._mesh = options.mesh
        self._builder = EventBuilder(Signer(client.key, clock), clock, options.run_id, options.mesh)

    async def send(self, rows: Sequence[SinkRow]) -> Delivered:
        """Send rows in order; raise sink_refused if the relay refused one."""
        destinations: dict[str, str] = {}
        for name in {row.to for row in rows if row.is_message and row.to}:
            is_topic = name.startswith(TOPIC_MARK)
            destinations[name] = name if is_topic else await self._client.meshes.resolve(name, self._mesh)
        events = [self._builder.event(row, destinations[str(row.to)] if row.is_message else None) for row in rows]
        results = await self._client.publish_many(events)
        refused = [result for result in results if isinstance(result, PosthouseError)]
        if refused:
            raise error("sink_refused", refused=len(refused), rows=len(rows), reason=refused[0].code) from refused[0]
        accepted = [result for result in results if not isinstance(result, PosthouseError)]
        not_queued = sum(len(result.answer.get("not_queued") or ()) for result in accepted)
        return Delivered(len(rows), sum(result.duplicate for result in accepted), not_queued)


async def deliver(rows: Sequence[SinkRow], options: SinkOptions) -> Delivered:
    """Send rows over a new client."""
    async with open_client(options) as client:
        return await Delivery(client, options).send(rows)
