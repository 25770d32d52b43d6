"""`posthouse pipeline publish`: figures and alerts back into the mesh."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.pipeline.place import HERE, Place
from posthouse.cli.pipeline.relay_option import Relay, reach_relay
from posthouse.cli.reach import MeshName


def publish(
    *,
    days: Annotated[int, Parameter(validator=Number(gte=1), help="How many days of history the figures speak of.")] = 7,
    alerts_to: Annotated[
        str | None, Parameter(help="#TOPIC that alerts are sent to; without it they are shown.")
    ] = None,
    flood: Annotated[
        int, Parameter(validator=Number(gte=1), help="Messages of a member in an hour from which on it floods.")
    ] = 1_000,
    silent: Annotated[str, Parameter(help="How long a member may leave messages unconfirmed.")] = "24h",
    attempts: Annotated[
        int, Parameter(validator=Number(gte=2), help="Sends of one message from which on it is a retry storm.")
    ] = 5,
    mesh: MeshName = "main",
    relay: Relay = None,
    place: Place = HERE,
    output: Output = PLAIN,
) -> None:
    """Publish what the lake knows: an addressable event stats/<member> for each member, stats/#<topic> for each topic.

    Run it as often as you like: the same history gives the same events and the same alerts, and the relay takes each
    once. Agents read them with `posthouse event address 30100:NODE:stats/MEMBER`.

    For example:

        posthouse pipeline publish
        posthouse pipeline publish --mesh team --alerts-to '#alerts' --silent 2h --json
    """
    from posthouse.cli.daemon.duration import parse_duration
    from posthouse.cli.identity import key_path
    from posthouse.pipeline.publish import Alarm, through_of
    from posthouse.pipeline.publish import publish as run
    from posthouse.pipeline.publish.figures import INPUTS
    from posthouse.pipeline.sink import SinkOptions

    alarm = Alarm(flood, parse_duration(silent), attempts)
    reach = reach_relay(place, relay)
    known = reach.options()
    options = SinkOptions.of(
        {
            "relay": reach.url(mesh).origin,
            "run_id": f"publish/{mesh}",
            "mesh": mesh,
            "key_file": str(key_path(place.key_file).absolute()),
            "allow_plain": str(known.allow_plain).lower(),
        }
        | ({} if known.tls_ca is None else {"tls_ca": str(known.tls_ca)})
    )
    lake, spark = place.open_lake(), place.session()
    inputs = {name: lake.table(spark, name) for name in INPUTS}
    done = run(spark, inputs, options, through_ns=through_of(lake), days=days, alarm=alarm, alerts_to=alerts_to)
    value = {"mesh": mesh, "members": done.members, "topics": done.topics, "alerts": done.alerts}
    output.note(f"figures of {done.members} members and {done.topics} topics published")
    rows = [(each["alert"], each["member"], each["since"], each["count"]) for each in done.alerts]
    output.answer(value, table(("alert", "member", "since", "count"), rows))
