"""The names that a shell offers when a person presses Tab: members, agents, topics and meshes.

The script of `posthouse completion` starts `posthouse __complete` with the words typed so far, which calls the
completer of the argument: a function of this module, named in the argument's Parameter. The names come from the daemon,
which answers without the relay. If a completer fails, the shell offers no names: cyclopts drops the exception, so that
no error is written into the line being typed. posthouse.cli.lock completes names of locks, which only the relay has.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from posthouse.client.daemon import DaemonClient

#: Time limit of a completer, in seconds: if the daemon or the relay hangs, the shell offers no names.
PATIENCE_S = 10.0
#: A candidate and the description that the shell may show next to it.
Names = list[tuple[str, str]]


def typed(context: CompletionContext, option: str) -> str | None:
    """Return the value that the line gives for an option, or None."""
    found = context.get(option)
    value: str | None = None if found is None else found.raw
    return value


def complete_members(context: CompletionContext) -> Names:
    """Return the hosts of the mesh that have a name."""
    with _daemon(context) as daemon:
        return [(peer["name"], _presence(peer)) for peer in daemon.peers()["peers"] if peer["name"]]


def complete_recipients(context: CompletionContext) -> Names:
    """Return the possible recipients of a message: hosts, agents and topics."""
    with _daemon(context) as daemon:
        peers, topics = daemon.peers()["peers"], daemon.topics().get("topics", [])
    hosts = [(peer["name"], _presence(peer)) for peer in peers if peer["name"]]
    agents = [
        (agent["name"] if peer["is_self"] else f"{agent['name']}@{peer['name']}", agent.get("summary") or "agent")
        for peer in peers
        for agent in peer["agents"]
        if peer["is_self"] or peer["name"]
    ]
    return [*agents, *hosts, *((f"#{topic}", "topic") for topic in topics)]


def complete_agents(context: CompletionContext) -> Names:
    """Return the agents of this host that accept mail."""
    with _daemon(context) as daemon:
        return [(agent.name, agent.summary or "") for agent in daemon.agents() if agent.retired_at is None]


def complete_topics(context: CompletionContext) -> Names:
    """Return the topics of the mesh."""
    with _daemon(context) as daemon:
        return [(str(topic), "") for topic in daemon.topics().get("topics", [])]


def complete_meshes(_context: CompletionContext) -> Names:
    """Return the meshes of this host."""
    from posthouse.client import Memberships

    return [(mesh, joined.relay) for mesh, joined in Memberships.of_home().all().items()]


def _daemon(context: CompletionContext) -> DaemonClient:
    from posthouse.client.daemon import DaemonClient

    directory = typed(context, "--dir")
    path = None if directory is None else Path(directory).expanduser()
    return DaemonClient(path, mesh=typed(context, "--mesh"), timeout_s=PATIENCE_S)


def _presence(peer: dict[str, Any]) -> str:
    return "online" if peer.get("online") else "offline"
