"""The page Team: hosts and their agents, who is online, whose mail waits, who waits for whom, and who talks to whom.

Members, agents and their state come from the daemon; without one, the relay names the members. The graph counts the
messages of the last hour: those of this host from the daemon, and, for admins of the relay, those between other hosts
from the journal, which has senders and recipients but no content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from posthouse.client.daemon.local_api import Exchange, ThreadMessage, ThreadSummary, Traffic
from posthouse.console.context import ConsoleCall
from posthouse.console.pictures import Graph, Vertex, draw_graph
from posthouse.console.rendering import short
from posthouse.console.upstream import Found, Upstream, attempt
from posthouse.http.response import HttpResponse
from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import SECOND_NS
from posthouse.model.node import node_from_hex

WINDOW_S = 3_600
_SEEN_S = 7 * 86_400  # how far back the page looks for the last message of an agent
_JOURNAL_PAGES = 4  # that the graph reads at most
_JOURNAL_PAGE = 500  # records
_THREADS = 50
#: defaults of the fields that the profile of an agent leaves out
_NO_AGENT = {"program": None, "summary": "", "status": None, "paused_until": None, "online": False}
_OVER = frozenset({"answered", "dead", "aborted", "rejected", "expired", "not_queued"})
_WAITS_SHOWN = 12


class Party(NamedTuple):
    """A host, one of its agents, or a topic."""

    node: str
    agent: str = ""


class Waiting(NamedTuple):
    """An agent that has asked another one and has no answer yet."""

    party: Party
    on: Party
    since: str
    thread: str
    subject: str


async def show_team(call: ConsoleCall) -> HttpResponse:
    """Show hosts and agents and the graph of the last hour."""
    upstream = call.upstream
    peers = await attempt(upstream.daemon.peers())
    agents = await attempt(upstream.daemon.agents())
    threads = await attempt(upstream.daemon.threads(limit=_THREADS))
    asked_since = _since(call, WINDOW_S)
    traffic = await _traffic(call, asked_since)
    seen = await upstream.remember("seen", lambda: upstream.daemon.traffic(_since(call, _SEEN_S)))
    hosts = await _hosts(upstream, peers)
    names = {host["node"]: host["name"] or short(host["node"]) for host in hosts}
    counted = traffic.or_else(Traffic([], asked_since))
    counts = _pairs(counted.items)
    last_seen = _last_seen(() if seen is None else seen.items)
    return call.page(
        "team.html",
        mesh=upstream.mesh,
        hosts=hosts,
        mail={agent.name: agent for agent in agents.or_else([])},
        last_seen=last_seen,
        host_seen=_host_seen(last_seen),
        waiting=await _waiting(upstream, threads.value or []),
        waits_shown=_WAITS_SHOWN,
        threads_read=_THREADS,
        names=names,
        graph=_graph(counts, hosts, names),
        since=counted.since if counted.since > asked_since else None,
        edges=[(_label(a, names), _label(b, names), count) for (a, b), count in counts.most_common(12)],
        failures=_distinct(peers.failure, traffic.failure),
    )


async def _hosts(upstream: Upstream, peers: Found[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the hosts, this one first, then those that are online, by name."""
    if peers.value is not None:
        hosts = [each | {"agents": [_NO_AGENT | agent for agent in each["agents"]]} for each in peers.value["peers"]]
    else:
        members = (await attempt(upstream.relay.meshes.members(upstream.mesh))).or_else([])
        hosts = [
            {"node": each.node, "name": each.name, "role": each.role, "online": None, "status": None, "agents": []}
            | {"is_self": each.node == upstream.node}
            for each in members
        ]
    return sorted(hosts, key=lambda each: (not each["is_self"], not each["online"], each["name"] or "~", each["node"]))


async def _traffic(call: ConsoleCall, since: str) -> Found[Traffic]:
    """Return the message counts by pair of parties: of this host and, for admins, also between other hosts."""
    upstream = call.upstream
    own = await attempt(upstream.daemon.traffic(since))
    health = await attempt(upstream.daemon.health())
    own_node = None if health.value is None else health.value.node
    if not await upstream.is_admin():
        return own
    others = await upstream.remember("others", lambda: attempt(_journal_traffic(upstream, parse_utc(since), own_node)))
    if others is None or others.value is None:
        return Found(own.value, own.failure or (None if others is None else others.failure))
    found = own.or_else(Traffic([], since))
    both = Traffic([*found.items, *others.value.items], max(found.since, others.value.since))
    return Found(both, own.failure)


async def _journal_traffic(upstream: Upstream, since_ns: int, own_node: str | None) -> Traffic:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    last: dict[tuple[str, str, str, str], int] = {}
    before: str | None = None
    for _ in range(_JOURNAL_PAGES):
        page = await upstream.relay.archive.newest_records(
            types=("message.accepted",), before=before, limit=_JOURNAL_PAGE
        )
        for record in page.records:
            if record.at_ns < since_ns:
                break
            to, to_agent = _destination(record.body)
            if record.mesh == upstream.mesh and record.actor != own_node and (to.startswith("#") or to != own_node):
                key = (record.actor or "", str(record.body.get("from_agent", "")), to, to_agent)
                counts[key] += 1
                last.setdefault(key, record.at_ns)
        before = page.cursor
        if before is None or not page.records or page.records[-1].at_ns < since_ns:
            break
    else:  # the pages read do not reach back to since_ns, so the counts begin later
        since_ns = page.records[-1].at_ns
    is_received = own_node is not None  # topic posts that this host received are in its own traffic
    exchanges = [
        Exchange(*key, count, format_utc(last[key]))
        for key, count in counts.items()
        if not (is_received and key[2].startswith("#"))
    ]
    return Traffic(exchanges, format_utc(since_ns))


def _destination(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the node or #topic of an accepted message, and the agent there."""
    reference = str(body.get("destination_ref", ""))
    if body.get("destination_kind") == "topic":
        return f"#{reference}", ""
    digits, _, agent = reference.partition("/")
    return node_from_hex(digits), agent


def _since(call: ConsoleCall, seconds: int) -> str:
    return format_utc(call.context.clock.wall_ns() - seconds * SECOND_NS)


def _pairs(traffic: Iterable[Exchange]) -> Counter[tuple[Party, Party]]:
    counts: Counter[tuple[Party, Party]] = Counter()
    for each in traffic:
        counts[Party(each.sender, each.from_agent), Party(each.to, each.to_agent)] += each.count
    return counts


def _last_seen(traffic: Iterable[Exchange]) -> dict[Party, str]:
    """Return when each agent last wrote to or through this host."""
    seen: dict[Party, str] = {}
    for each in traffic:
        party = Party(each.sender, each.from_agent)
        seen[party] = max(each.last_at, seen.get(party, ""))
    return seen


def _host_seen(last_seen: Mapping[Party, str]) -> dict[str, str]:
    """Return when each host last wrote, itself or by one of its agents."""
    seen: dict[str, str] = {}
    for party, at in last_seen.items():
        seen[party.node] = max(at, seen.get(party.node, ""))
    return seen


async def _waiting(upstream: Upstream, threads: Sequence[ThreadSummary]) -> list[Waiting]:
    """Return the agents that wait for an answer, as far as daemon and relay know."""
    asking = [thread.last for thread in threads if _is_waiting(thread, thread.last.state)]
    return waiting_parties(threads, await upstream.message_states(asking))


def waiting_parties(threads: Sequence[ThreadSummary], states: Mapping[str, str]) -> list[Waiting]:
    """Return the agents of this host that began a thread and have the last word in it, the longest wait first.

    `states` has, by message id, the states that only the relay knows.
    """
    asked = [each for each in threads if _is_waiting(each, states.get(each.last.message_id, each.last.state))]
    waits = [Waiting(_author(each.last), _reader(each.last), each.last.at, each.id, each.subject) for each in asked]
    return sorted(waits, key=lambda each: each.since)


def _author(message: ThreadMessage) -> Party:
    return Party(message.sender, message.from_agent)


def _reader(message: ThreadMessage) -> Party:
    return Party(message.to, message.to_agent)


def _is_waiting(thread: ThreadSummary, state: str) -> bool:
    last, first = thread.last, thread.participants[0]
    author = _author(last)
    has_asked = last.is_own and author == (first.node, first.agent) and last.expects_answer
    return has_asked and state not in _OVER and author != _reader(last) and not last.to.startswith("#")


def _graph(
    counts: Mapping[tuple[Party, Party], int], hosts: Sequence[dict[str, Any]], names: Mapping[str, str]
) -> Graph | None:
    """Return the graph of the parties that talked to others; None if none did."""
    talked = {party for pair in counts if pair[0] != pair[1] for party in pair}
    if not talked:
        return None
    online = {host["node"] for host in hosts if host["online"]}
    running = {Party(host["node"], agent["name"]) for host in hosts for agent in host["agents"] if agent["online"]}
    vertices = [
        Vertex(
            _key(party),
            _label(party, names),
            "topic" if party.node.startswith("#") else "agent" if party.agent else "host",
            is_online=party in running or (not party.agent and party.node in online),
        )
        for party in sorted(talked, key=lambda each: (each.node.startswith("#"), names.get(each.node, ""), each.agent))
    ]
    return draw_graph(vertices, {(_key(a), _key(b)): count for (a, b), count in counts.items()})


def _key(party: Party) -> str:
    return f"{party.node}/{party.agent}"


def _label(party: Party, names: Mapping[str, str]) -> str:
    """Return a party as people address it: agent@host, host, or #topic."""
    host = party.node if party.node.startswith("#") else names.get(party.node) or short(party.node)
    return f"{party.agent}@{host}" if party.agent else host


def _distinct(*failures: PosthouseError | None) -> list[PosthouseError]:
    """Return the failures, each code once."""
    return list({each.code: each for each in failures if each is not None}.values())
