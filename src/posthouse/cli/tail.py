"""`posthouse tail`: what happens at this host's daemon, as it happens, over its restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near

if TYPE_CHECKING:
    from posthouse.client.daemon import DaemonEvent


def tail(
    *,
    all: Annotated[  # noqa: A002 - the user's word
        bool, Parameter(negative=(), show_default=False, help="Also peers, the relay's state, outbox and system.")
    ] = False,
    after: Annotated[str | None, Parameter(help="Begin behind this event, by its id.")] = None,
    count: Annotated[int | None, Parameter(validator=Number(gte=1), help="End after so many.")] = None,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Show mail as it comes, until Ctrl-C; reconnects by itself and goes on where it was.

    With --json each line carries the id to go on from.

    For example:

        posthouse tail
        posthouse tail --all --json
        posthouse tail --after 01JQ8Z5N0000000000000000AB --count 1
    """
    shown = 0
    with near.client() as daemon:
        for event in daemon.events(after):
            if not all and event.event != "message":
                continue
            output.answer(event, _line(event))
            shown += 1
            if shown == count:
                return


def _line(event: DaemonEvent) -> str:
    data = event.data
    when = str(data.get("ts", ""))
    if event.event != "message":
        rest = "  ".join(f"{name}={value}" for name, value in data.items() if name != "ts")
        return f"{when}  {event.event}  {rest}"
    who = data.get("sender_name") or str(data.get("sender", "")).removeprefix("ed25519:")[:8]
    where = f"  #{data['topic']}" if data.get("topic") else ""
    text = "(undecryptable)" if data.get("body") is None else data["body"]
    return f"{when}  {who}{where}  {text}"
