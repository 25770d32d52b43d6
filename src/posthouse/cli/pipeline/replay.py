"""`posthouse pipeline replay`: send messages of the past again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.bus.place import visit
from posthouse.cli.console import PLAIN, Output
from posthouse.cli.pipeline.place import HERE, Place
from posthouse.cli.pipeline.relay_option import Relay, reach_relay
from posthouse.cli.reach import MeshName
from posthouse.model.clock import system_clock

if TYPE_CHECKING:
    from posthouse.bus import Bus
    from posthouse.client import Client
    from posthouse.pipeline.replay import Cursor, Replayed, Target, Terms
    from posthouse.pipeline.replay.target import Old


def replay(
    *,
    where: Annotated[str, Parameter(help="SQL condition on the columns of silver_messages.")] = "true",
    to: Annotated[str, Parameter(help="#TOPIC of the mesh, or a subject of the bus of this host.")],
    name: Annotated[str, Parameter(help="The name of its cursor: the same name goes on where it ended.")] = "default",
    rate: Annotated[
        float | None,
        Parameter(validator=Number(gt=0), help="Messages a second; without it as fast as it goes."),
    ] = None,
    mesh: MeshName = "main",
    relay: Relay = None,
    place: Place = HERE,
    output: Output = PLAIN,
) -> None:
    """Send messages that match a condition again, oldest first, each once however often this is run.

    Sealed messages are left out: only their readers can open them. A message says in its meta, or on the bus in
    platformData, what it is a replay of.

    For example:

        posthouse pipeline replay --where "destination = 'builds'" --to '#builds-again' --rate 50
        posthouse pipeline replay --where "source = 'bus'" --to test.agent --name again-on-the-bus --json
    """
    from posthouse.pipeline.replay import BusTarget, Cursors, Terms, TopicTarget
    from posthouse.pipeline.replay import replay as run
    from posthouse.pipeline.sink import SinkOptions

    topic = to.removeprefix("#") if to.startswith("#") else None
    terms = Terms(where, to, None if topic is None else mesh)
    cursors = Cursors(place.lake_path())
    cursor = cursors.begin(name, terms)
    messages = _select(place, terms, cursor)

    def tell(done: Replayed) -> None:
        output.note(f"{done.sent} sent")

    async def send(target: Target) -> Replayed:
        return await run(messages, target, cursors, name, cursor, system_clock(), rate=rate, on_batch=tell)

    async def send_to_topic(client: Client) -> Replayed:
        return await send(TopicTarget(client, SinkOptions(client.url.origin, f"replay/{name}", mesh=mesh), str(topic)))

    async def send_to_bus(bus: Bus) -> Replayed:
        return await send(BusTarget(bus, name, to))

    done = visit(None, output, send_to_bus) if topic is None else reach_relay(place, relay).visit(mesh, send_to_topic)
    value = {"name": name} | done._asdict()
    if done.not_queued:
        output.note(f"{done.not_queued} times the queue of a reader was full, and it missed a message")
    output.answer(value, f"{done.sent} sent to {to}, {done.duplicates} of them were there; {done.total} in all")


def _select(place: Place, terms: Terms, cursor: Cursor) -> Iterator[Old]:
    from posthouse.pipeline.replay.select import INPUTS, select_messages
    from posthouse.pipeline.replay.target import Old

    lake, spark = place.open_lake(), place.session()
    inputs = {name: lake.table(spark, name) for name in INPUTS}
    chosen = select_messages(inputs, terms.where, cursor)
    return (Old(**row.asDict()) for row in chosen.toLocalIterator())
