"""`posthouse peers` and `posthouse profile`: the members of the mesh, and what they see of this host.

`profile` changes only the fields that are given.
"""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import error


def peers(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """List the members of the mesh, whether they are online, and what they say about themselves.

    For example:

        posthouse peers
        posthouse peers --mesh team --json
    """
    with daemon_options.client() as daemon:
        answer = daemon.peers()
    rows = [
        (
            (each.get("name") or "-") + (" (this host)" if each.get("is_self") else ""),
            "online" if each.get("online") else "offline",
            each.get("status") or "",
            each.get("role") or "",
            each.get("node") or "",
        )
        for each in answer.get("peers", [])
    ]
    output.result(answer, table(("name", "presence", "status", "role", "node"), rows))
    if answer.get("is_cached"):
        output.note("the relay cannot be reached: this is what was last heard")


_MANY = Parameter(negative=(), show_default=False)


def profile(
    *,
    summary: Annotated[str | None, Parameter(help="What it does now, in a line.")] = None,
    status: Annotated[Literal["idle", "working", "dnd"] | None, Parameter(help="A word to the others.")] = None,
    visible: Annotated[bool | None, Parameter(negative="--hidden", help="Whether others see that it is there.")] = None,
    avatar: Annotated[str | None, Parameter(help="A picture, as the others' programs take it.")] = None,
    title: Annotated[str | None, Parameter(help="What it is.")] = None,
    bio: Annotated[str | None, Parameter(help="A few words more.")] = None,
    capability: Annotated[tuple[str, ...], _MANY, Parameter(help="Something it can do. Several times.")] = (),
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Change the profile of this host; what is not given stays as it is.

    For example:

        posthouse profile --status working --summary "reviewing the relay"
        posthouse profile --capability review --capability python --json
    """
    given = {"summary": summary, "status": status, "avatar": avatar, "title": title, "bio": bio}
    if not capability and visible is None and all(value is None for value in given.values()):
        raise error("usage", text="give at least one thing to change")
    with daemon_options.client() as daemon:
        answer = daemon.profile(
            summary=summary,
            status=status,
            visible=visible,
            avatar=avatar,
            title=title,
            bio=bio,
            capabilities=list(capability) or None,
        )
    output.result(answer, "the profile is changed")
