"""`posthouse reserve` and `posthouse release`: reserve files so that no two agents of this host edit the same ones.

The daemon decides; a reservation names a file or a directory with everything below it. It binds agents that ask
before they write: `posthouse guard install` makes coding agents and git ask.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions, parse_duration
from posthouse.cli.output import PLAIN, Output, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from posthouse.client.daemon import Reservation

_SWITCH = Parameter(negative=(), show_default=False)
Paths = Annotated[Path, Parameter(help="Files or directories; a directory stands for everything below it.")]


def reserve(
    *paths: Paths,
    for_: Annotated[str, Parameter(name="--for", help="How long: 90s, 15m, 2h; at most 24h.")] = "30m",
    note: Annotated[str, Parameter(help="What you are working on; shown to agents that are refused.")] = "",
    shared: Annotated[bool, _SWITCH, Parameter(help="Let other agents make shared reservations of it.")] = False,
    repo: Annotated[
        bool, _SWITCH, Parameter(help="Also lock the paths of the git repository at the relay, for other hosts.")
    ] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Reserve files and directories for the agent you act as, all or none.

    A reservation ends after its time, with `posthouse release`, or when the agent's program has been gone for five
    minutes. Reserving a path again extends it. Without a path the command lists all reservations.

    For example:

        posthouse reserve src/api --for 30m --note "refactor"
        posthouse reserve docs README.md --shared
        posthouse reserve
    """
    with daemon_options.client() as daemon:
        if not paths:
            held: Sequence[Reservation] = daemon.reservations()
            output.result({"items": held}, _table(held))
            return
        made = daemon.reserve(
            *(str(path.absolute()) for path in paths),
            for_s=parse_duration(for_),
            note=note,
            mode="shared" if shared else "exclusive",
            is_repo=repo,
        )
    output.result({"items": made}, "\n".join(f"{each.path} is yours until {each.ends_at}" for each in made))


def release(
    *paths: Paths,
    force: Annotated[bool, _SWITCH, Parameter(help="Also release reservations of other agents.")] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Release files and directories that the agent you act as has reserved.

    Without a path it releases all of them.

    For example:

        posthouse release src/api
        posthouse release src/api --force
        posthouse release
    """
    with daemon_options.client() as daemon:
        ended = daemon.release(*(str(path.absolute()) for path in paths), is_forced=force)
    text = "\n".join(f"{each.path} is free" for each in ended)
    nothing = "you had reserved nothing there; `posthouse reserve` lists all reservations"
    output.result({"items": ended}, text or nothing)


def _table(held: Sequence[Reservation]) -> RenderableType:
    rows = [(each.path, each.agent or "a person", each.mode, f"{each.left_s} s", each.note) for each in held]
    return table(("path", "agent", "mode", "left", "note"), rows)
