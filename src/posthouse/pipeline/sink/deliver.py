"""Sending the rows of a run: resolve names, sign, send in the order given, and say what became of them.

All rows are made into events before the first is sent: what is wrong with a row shows before anything happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posthouse.client import Client, ClientOptions
from posthouse.client.messages.compose import TOPIC_MARK
from posthouse.client.pins import Pins
from posthouse.client.signing import Signer
from posthouse.keys import keyfile
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.sink.draft import Drafts
from posthouse.pipeline.sink.options import SinkOptions
from posthouse.pipeline.sink.row import SinkRow


class Delivered(NamedTuple):
    """What became of the rows of a run."""

    rows: int
    #: those that the relay had already
    duplicates: int
    #: readers of a topic that did not get a message, because their queue was full
    not_queued: int


def open_client(options: SinkOptions) -> Client:
    """Make the client of a run, with the key from its file; nothing is connected yet."""
    tls_ca = None if options.tls_ca is None else Path(options.tls_ca)
    return Client(
        options.relay,
        keyfile.load(options.key_path()),
        mesh=options.mesh,
        pins=Pins(Path(options.home) / "pins.json"),
        options=ClientOptions(tls_ca=tls_ca, allow_plain=options.allow_plain),
    )


class Delivery:
    """Sends rows of one run over one client."""

    def __init__(self, client: Client, options: SinkOptions) -> None:
        clock = system_clock()
        self._client = client
        self._mesh = options.mesh
        self._drafts = Drafts(Signer(client.key, clock), clock, options.run_id, options.mesh)

    async def send(self, rows: Sequence[SinkRow]) -> Delivered:
        """Send rows in order; sink_refused when the relay refused one."""
        places: dict[str, str] = {}
        for name in {row.to for row in rows if row.is_message and row.to}:
            is_name = not name.startswith(TOPIC_MARK)
            places[name] = await self._client.meshes.resolve(name, self._mesh) if is_name else name
        events = [self._drafts.event(row, places[str(row.to)] if row.is_message else None) for row in rows]
        answers = await self._client.publish_many(events)
        refused = [answer for answer in answers if isinstance(answer, PosthouseError)]
        if refused:
            raise error("sink_refused", refused=len(refused), rows=len(rows), reason=refused[0].code) from refused[0]
        taken = [answer for answer in answers if not isinstance(answer, PosthouseError)]
        missed = sum(len(answer.answer.get("not_queued") or ()) for answer in taken)
        return Delivered(len(rows), sum(answer.duplicate for answer in taken), missed)


async def deliver(rows: Sequence[SinkRow], options: SinkOptions) -> Delivered:
    """Send rows over a client of their own."""
    async with open_client(options) as client:
        return await Delivery(client, options).send(rows)
