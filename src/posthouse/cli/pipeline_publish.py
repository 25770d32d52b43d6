"""`posthouse pipeline publish`, `replay` and `archive`: send data of the lake to a mesh, a bus or a relay.

All three can be repeated after any failure: the same history gives the same events, a replay continues at its
cursor, and a relay deletes only records that the lake provably holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.bus_session import with_bus
from posthouse.cli.options import MeshName
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.pipeline_options import DEFAULT_PIPELINE, PipelineOptions, PricesFile, RelayAddress, chosen_relay
from posthouse.model.clock import system_clock

if TYPE_CHECKING:
    from posthouse.bus import Bus
    from posthouse.cli.options import RelayOptions
    from posthouse.client import Client
    from posthouse.model.api import Pruned
    from posthouse.pipeline.archive_history import Archived
    from posthouse.pipeline.connector.sink_rows import SinkOptions
    from posthouse.pipeline.replay_messages import PastMessage, ReplayCursor, Replayed, ReplayOptions, ReplayTarget


def publish(
    *,
    days: Annotated[int, Parameter(validator=Number(gte=1), help="Days of history that the statistics cover.")] = 7,
    alerts_to: Annotated[str | None, Parameter(help="#TOPIC to send alerts to. Default: only show them.")] = None,
    flood: Annotated[
        int, Parameter(validator=Number(gte=1), help="Messages of one member in an hour that count as a flood.")
    ] = 1_000,
    silent: Annotated[str, Parameter(help="Time without confirmations after which a member counts as silent.")] = "24h",
    attempts: Annotated[
        int, Parameter(validator=Number(gte=2), help="Delivery attempts of one message that count as a retry storm.")
    ] = 5,
    budget_usd: Annotated[
        float | None, Parameter(validator=Number(gt=0), help="Alert if the mesh costs more dollars on a UTC day.")
    ] = None,
    agent_budget_usd: Annotated[
        float | None, Parameter(validator=Number(gt=0), help="Alert if an agent costs more dollars on a UTC day.")
    ] = None,
    prices: PricesFile = None,
    mesh: MeshName = None,
    relay: RelayAddress = None,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Publish statistics of the lake: an addressable event stats/MEMBER per member and stats/#TOPIC per topic.

    Repeating the command is safe: the same history gives the same events and alerts, and the relay stores each once.
    Agents read them with `posthouse event address 30100:NODE:stats/MEMBER`.

    For example:

        posthouse pipeline publish
        posthouse pipeline publish --mesh team --alerts-to '#alerts' --silent 2h
        posthouse pipeline publish --budget-usd 50 --agent-budget-usd 10 --json
    """
    from posthouse.cli.options import default_mesh, parse_duration
    from posthouse.model.clock import format_utc
    from posthouse.model.limits import DAY_S, SECOND_NS
    from posthouse.pipeline.gold_reader import GoldReader, Selection
    from posthouse.pipeline.publish_stats import INPUTS, AlertThresholds, spent_alerts, through_of
    from posthouse.pipeline.publish_stats import publish as run
    from posthouse.pipeline.query import refuse_empty

    alarm = AlertThresholds(flood, parse_duration(silent), attempts)
    named, lake = mesh or default_mesh(), pipeline_options.open_lake()
    refuse_empty(lake)  # fail before Spark starts
    options = _sink_options(pipeline_options, chosen_relay(pipeline_options, relay), named)
    spark = pipeline_options.session()
    inputs = {name: lake.table(spark, name) for name in INPUTS}
    through_ns = through_of(lake)
    recent = Selection(first_day=format_utc(through_ns - days * DAY_S * SECOND_NS).partition("T")[0], mesh=named)
    spent = spent_alerts(GoldReader(lake, recent, pipeline_options.prices(prices)), budget_usd, agent_budget_usd)
    done = run(
        spark, inputs, options, through_ns=through_ns, days=days, thresholds=alarm, alerts_to=alerts_to, spent=spent
    )
    value = {"mesh": named, "members": done.members, "topics": done.topics, "alerts": done.alerts}
    output.note(f"published statistics of {done.members} members and {done.topics} topics")
    dollars = {each[:3]: f"${each.dollars:,.2f}" for each in spent}
    places = [(each["alert"], each["member"], each["since"]) for each in done.alerts]
    rows = [(*place, dollars.get(place, each["count"])) for place, each in zip(places, done.alerts, strict=True)]
    output.result(value, table(("alert", "member", "since", "count"), rows))


def _sink_options(pipeline_options: PipelineOptions, relay_options: RelayOptions, mesh: str) -> SinkOptions:
    from posthouse.cli.options import key_path
    from posthouse.pipeline.connector.sink_rows import SinkOptions

    client = relay_options.options()
    return SinkOptions.of(
        {
            "relay": relay_options.url(mesh).origin,
            "run_id": f"publish/{mesh}",
            "mesh": mesh,
            "key_file": str(key_path(pipeline_options.key_file, mesh).absolute()),
            "allow_plain": str(client.allow_plain).lower(),
        }
        | ({} if client.tls_ca is None else {"tls_ca": str(client.tls_ca)})
    )


def replay(
    *,
    where: Annotated[str, Parameter(help="SQL condition on the columns of silver_messages.")] = "true",
    to: Annotated[str, Parameter(help="#TOPIC of the mesh, or a subject of the bus of this host.")],
    name: Annotated[
        str, Parameter(help="Name of the cursor: a replay with the same name continues where it ended.")
    ] = "default",
    rate: Annotated[
        float | None,
        Parameter(validator=Number(gt=0), help="Messages per second. Default: no limit."),
    ] = None,
    mesh: MeshName = None,
    relay: RelayAddress = None,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Send past messages that match a condition again, oldest first; repeating the command sends none twice.

    Sealed messages are skipped: only their recipients can open them. The meta of a message, or its platformData on the
    bus, names the original message.

    For example:

        posthouse pipeline replay --where "destination = 'builds'" --to '#rebuilds'
        posthouse pipeline replay --where "source = 'bus'" --to test.agent --rate 50
        posthouse pipeline replay --where "size > 4096" --to test.agent --name big
    """
    from posthouse.cli.options import default_mesh
    from posthouse.pipeline.connector.sink_rows import SinkOptions
    from posthouse.pipeline.replay_messages import BusTarget, ReplayCursors, ReplayOptions, TopicTarget
    from posthouse.pipeline.replay_messages import replay as run

    topic = to.removeprefix("#") if to.startswith("#") else None
    named = mesh or default_mesh()
    options = ReplayOptions(where, to, None if topic is None else named)
    cursors = ReplayCursors(pipeline_options.open_lake().path)
    cursor = cursors.begin(name, options)
    messages = _select(pipeline_options, options, cursor)

    def on_batch(done: Replayed) -> None:
        output.note(f"{done.sent} sent")

    async def send(target: ReplayTarget) -> Replayed:
        return await run(messages, target, cursors, name, cursor, system_clock(), rate=rate, on_batch=on_batch)

    async def send_to_topic(client: Client) -> Replayed:
        return await send(TopicTarget(client, SinkOptions(client.url.origin, f"replay/{name}", mesh=named), str(topic)))

    async def send_to_bus(bus: Bus) -> Replayed:
        return await send(BusTarget(bus, name, to))

    done = (
        with_bus(None, output, send_to_bus)
        if topic is None
        else chosen_relay(pipeline_options, relay).run(named, send_to_topic)
    )
    value = {"name": name} | done._asdict()
    if done.not_queued:
        output.note(f"{done.not_queued} deliveries were dropped because the queue of a recipient was full")
    output.result(value, f"{done.sent} sent to {to}, {done.duplicates} of them duplicates; {done.total} in total")


def _select(pipeline_options: PipelineOptions, options: ReplayOptions, cursor: ReplayCursor) -> Iterator[PastMessage]:
    from posthouse.pipeline.query import refuse_empty
    from posthouse.pipeline.replay_messages import INPUTS, PastMessage, select_messages

    lake = pipeline_options.open_lake()
    refuse_empty(lake)  # fail before Spark starts
    spark = pipeline_options.session()
    inputs = {name: lake.table(spark, name) for name in INPUTS}
    chosen = select_messages(inputs, options.where, cursor)
    return (PastMessage(**row.asDict()) for row in chosen.toLocalIterator())


def archive(
    *,
    older_than: Annotated[str, Parameter(help="Minimum age of history to delete: 30d, 12h.")] = "30d",
    relay: RelayAddress = None,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Ask a relay to delete old history that the lake provably holds; bring the lake up to date first.

    The relay compares digests of rows read back from the lake with its own rows. It keeps everything that is still
    needed: current events, memberships, open deliveries, dedupe records and lock tokens. The command can be repeated
    after any failure.

    For example:

        posthouse pipeline archive --older-than 30d
        posthouse pipeline archive --older-than 7d --relay relay.example:7420 --json
    """
    from posthouse.cli.options import parse_duration
    from posthouse.model.clock import system_clock
    from posthouse.model.limits import SECOND_NS
    from posthouse.pipeline.archive_history import archive as run

    before_ns = system_clock().wall_ns() - round(parse_duration(older_than) * SECOND_NS)
    lake = pipeline_options.open_lake()

    async def work(client: Client) -> Archived:
        return await run(client, lake, before_ns, on_pruned)

    def on_pruned(part: Pruned) -> None:
        output.note(f"{part.pruned} records pruned, the oldest remaining is {part.oldest_seq}")

    done = chosen_relay(pipeline_options, relay).run(None, work)
    value = {"epoch": done.epoch, "pruned": done.pruned, "emptied": done.emptied, "oldest_seq": done.oldest_seq}
    output.result(value, f"{done.pruned} records pruned, {done.emptied} events are now only in the lake")
