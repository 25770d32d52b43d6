"""`posthouse peers` and `posthouse profile`: the members of the mesh, and the profile that they see of this host.

`profile` changes only the fields that are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions, note_membership
from posthouse.cli.output import PLAIN, Output, short_node, table
from posthouse.model.address import Address
from posthouse.model.errors import error


def peers(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """List the hosts of the mesh and their agents, with their presence and status.

    For example:

        posthouse peers
        posthouse peers --mesh team --json
    """
    with daemon_options.client() as daemon:
        answer = daemon.peers()
        note_membership(daemon, output)
    show_members(answer, answer["mesh"], answer["peers"], output)
    if answer.get("is_cached"):
        output.note("the relay cannot be reached: this list is the last one received")


def show_members(value: object, mesh: str, members: list[dict[str, Any]], output: Output) -> None:
    """Show the hosts of a mesh, their agents, and changed keys; presence is `-` if no daemon supplied it."""
    from posthouse.client.trust.pins import member_key_changed

    rows = [row for each in members for row in _peer_rows(each, is_csv=output.form == "csv")]
    output.result(value, table(("name", "presence", "status", "role", "node"), rows))
    for each in members:
        if each.get("pinned"):
            changed = member_key_changed(mesh, each["name"], each["pinned"], each["node"])
            output.note(f"{changed}. {changed.hint}")
        if each.get("former_key"):
            output.note(f"{each['name']} has a new key, {each['node']}; the old one, {each['former_key']}, signed it")


def _peer_rows(peer: dict[str, Any], *, is_csv: bool) -> Iterator[tuple[str, ...]]:
    """Yield the row of a host, and one for each of its agents.

    The table marks this host and shows each agent's summary or capabilities; CSV has only names and node ids.
    """
    host, node = peer.get("name") or "-", peer.get("node") or ""
    shown = host + (" (this host)" if peer.get("is_self") and not is_csv else "")
    yield shown, _presence(peer), peer.get("status") or "", peer.get("role") or "", node
    for agent in peer.get("agents") or []:
        about = agent.get("summary") or ", ".join(agent.get("capabilities") or [])
        address = str(Address(agent["name"], peer.get("name") or short_node(peer["node"])))
        yield (
            address if is_csv else f"  {address}",
            _presence(agent),
            agent.get("status") or "",
            "agent",
            node if is_csv else about,
        )


def _presence(entry: dict[str, Any]) -> str:
    is_online = entry.get("online")
    return "-" if is_online is None else "online" if is_online else "offline"


_MANY = Parameter(negative=(), show_default=False)


def profile(
    *,
    summary: Annotated[str | None, Parameter(help="What this host is working on, in one line.")] = None,
    status: Annotated[
        Literal["idle", "working", "dnd"] | None, Parameter(help="Availability shown to other members.")
    ] = None,
    visible: Annotated[
        bool | None, Parameter(negative="--hidden", help="Whether other members see this host as present.")
    ] = None,
    avatar: Annotated[str | None, Parameter(help="A picture, in a form that the members' programs understand.")] = None,
    title: Annotated[str | None, Parameter(help="Role or job title.")] = None,
    bio: Annotated[str | None, Parameter(help="A short description.")] = None,
    capability: Annotated[tuple[str, ...], _MANY, Parameter(help="A capability to advertise. Repeatable.")] = (),
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Change the profile that other members see; fields that are not given stay as they are.

    For example:

        posthouse profile --status working --summary "reviewing the relay"
        posthouse profile --capability review --capability python --json
    """
    given = {"summary": summary, "status": status, "avatar": avatar, "title": title, "bio": bio}
    if not capability and visible is None and all(value is None for value in given.values()):
        raise error("usage", text="give at least one field to change")
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
    output.result(answer, "profile changed")
