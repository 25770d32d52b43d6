"""What must be true after the daemon campaign; a finding is a sentence, none means that every promise was kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tests.faults.agent_process import Shown
from tests.faults.daemon_campaign import AGENTS, Agent, Ledger, is_own


def check_campaign(ledger: Ledger) -> list[str]:
    """Compare what was promised with what arrived, was shown and was receipted."""
    return [
        *ledger.findings,
        *_lost(ledger),
        *_twice(ledger),
        *_disordered(ledger),
        *_shown_wrongly(ledger),
        *_unheard(ledger),
        *_senders_mistaken(ledger),
    ]


def recipients(body: str) -> list[Agent]:
    """Return the agents that must get a message, by its text."""
    to = body.partition(">")[2].rpartition(" ")[0]
    if to.startswith("#"):
        return [agent for agent in AGENTS if not is_own(body, agent)]
    return [agent for agent in AGENTS if str(agent) == to]


def _lost(ledger: Ledger) -> Iterator[str]:
    there = {agent: {item.body for item in items} for agent, items in ledger.inbox.items()}
    for bodies in ledger.accepted.values():
        for body in bodies:
            for agent in recipients(body):
                if body not in there[agent]:
                    yield f"lost: {body} was accepted and is not in the inbox of {agent}"


def _twice(ledger: Ledger) -> Iterator[str]:
    for agent, items in ledger.inbox.items():
        for body, number in Counter(item.body for item in items).items():
            if number > 1:
                yield f"twice: {body} is {number} times in the inbox of {agent}"


def _disordered(ledger: Ledger) -> Iterator[str]:
    """Messages of one sender to one recipient come in the order in which they were accepted, and are shown so."""
    for agent, items in ledger.inbox.items():
        yield from _disordered_among(agent, [str(item.body) for item in items], "lie")
    for agent, lines in ledger.told.items():
        first = dict.fromkeys(shown.body for shown in _shown(lines) if not shown.is_read_before)
        yield from _disordered_among(agent, list(first), "are shown")


def _disordered_among(agent: Agent, bodies: list[str], what: str) -> Iterator[str]:
    channels: dict[str, list[int]] = {}
    for body in bodies:
        channel, _, number = body.rpartition(" ")
        channels.setdefault(channel, []).append(int(number))
    for channel, numbers in channels.items():
        for before, after in pairwise(numbers):
            if after < before:
                yield f"disordered: {channel} {before} and {after} {what} in this order at {agent}"


def _shown(lines: list[list[Shown] | str]) -> Iterator[Shown]:
    for line in lines:
        if not isinstance(line, str):
            yield from line


def _shown_wrongly(ledger: Ledger) -> Iterator[str]:
    """Each message is shown, and none is shown as new again after it was marked or by the same process."""
    for agent, lines in ledger.told.items():
        marked: set[str] = set()
        current: set[str] = set()
        for line in lines:
            if line == "done":
                marked |= current
            if isinstance(line, str):
                current = set()
                continue
            for shown in line:
                if not shown.is_read_before and shown.id in marked | current:
                    yield f"shown twice: {shown.body} as new to {agent}"
                current.add(shown.id)
        known = {shown.id for shown in _shown(lines)}
        for item in ledger.inbox[agent]:
            if item.id not in known:
                yield f"not shown: {item.body} is in the inbox of {agent}"


def _unheard(ledger: Ledger) -> Iterator[str]:
    """A program that listened was told every message once, in the order of the inbox."""
    for agent, heard in ledger.heard.items():
        ids = [item.id for item in ledger.inbox[agent]]
        if heard != ids:
            missing = len(set(ids) - set(heard))
            repeated = sum(number - 1 for number in Counter(heard).values())
            yield f"unheard: {missing} messages were not told to {agent}, {repeated} twice"


def _senders_mistaken(ledger: Ledger) -> Iterator[str]:
    """What a sender is told agrees with the inbox of the recipient."""
    read = {
        (agent, item.client_message_id): item.seen_at is not None for agent in AGENTS for item in ledger.inbox[agent]
    }
    rows = [row for found in ledger.outbox.values() for row in found]
    for row in rows:
        body = row.client_message_id
        if row.status != "done":
            yield f"undone: {body} is {row.status}"
        elif row.to_agent:
            is_read = any(read.get((agent, body)) for agent in recipients(body))
            if (row.state == "read") != is_read:
                yield f"receipt: {body} is {row.state} for its sender, and {'' if is_read else 'not '}read"
    promised = {body for bodies in ledger.accepted.values() for body in bodies}
    for body in promised - {row.client_message_id for row in rows}:
        yield f"undone: {body} was accepted and has no row"
