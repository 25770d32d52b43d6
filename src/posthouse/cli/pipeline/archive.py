"""`posthouse pipeline archive`: let a relay prune what the lake holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.pipeline.place import HERE, Place
from posthouse.cli.pipeline.relay_option import Relay, reach_relay

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.client.archive import Pruned
    from posthouse.pipeline.archive import Archived


def archive(
    *,
    older_than: Annotated[str, Parameter(help="Age from which history may go: 30d, 12h.")] = "30d",
    relay: Relay = None,
    place: Place = HERE,
    output: Output = PLAIN,
) -> None:
    """Ask a relay to delete old history that the lake provably holds; bring the lake up to date first.

    The relay compares digests of what was read back from the lake with its own rows. It keeps what is still needed:
    current events, memberships, messages on their way, records and lock tokens. Run it again after any failure.

    For example:

        posthouse pipeline archive --older-than 30d
        posthouse pipeline archive --older-than 7d --relay https://relay.example:7420 --json
    """
    from posthouse.cli.daemon.duration import parse_duration
    from posthouse.model.clock import system_clock
    from posthouse.model.limits import SECOND_NS
    from posthouse.pipeline.archive import archive as run

    before_ns = system_clock().wall_ns() - round(parse_duration(older_than) * SECOND_NS)
    lake = place.open_lake()

    async def work(client: Client) -> Archived:
        return await run(client, lake, before_ns, tell)

    def tell(part: Pruned) -> None:
        output.note(f"{part.pruned} records pruned, the oldest left is {part.oldest_seq}")

    done = reach_relay(place, relay).visit(None, work)
    value = {"epoch": done.epoch, "pruned": done.pruned, "emptied": done.emptied, "oldest_seq": done.oldest_seq}
    output.answer(value, f"{done.pruned} records pruned, {done.emptied} events are in the lake alone")
