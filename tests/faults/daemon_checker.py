"""What must be true after the daemon campaign; a finding is a sentence, none means that every promise was kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tests.faults.daemon_campaign import Ledger


def check_campaign(ledger: Ledger) -> list[str]:
    """Compare what was promised with what arrived."""
    return [*_lost(ledger), *_twice(ledger), *_disordered(ledger), *_undone(ledger), *_unheard(ledger)]


def _lost(ledger: Ledger) -> Iterator[str]:
    there = {item.body for item in ledger.inbox}
    for bodies in ledger.accepted.values():
        yield from (f"lost: {body} was accepted and is not in the inbox" for body in bodies if body not in there)


def _twice(ledger: Ledger) -> Iterator[str]:
    counted = Counter(item.body for item in ledger.inbox)
    yield from (f"twice: {body} is there {number} times" for body, number in counted.items() if number > 1)


def _disordered(ledger: Ledger) -> Iterator[str]:
    for name in ledger.accepted:
        numbers = [int(str(item.body).split()[1]) for item in ledger.inbox if str(item.body).split()[0] == name]
        for before, after in pairwise(numbers):
            if after < before:
                yield f"disordered: {name} {after} comes behind {name} {before}"


def _undone(ledger: Ledger) -> Iterator[str]:
    for name, rows in ledger.outbox.items():
        yield from (f"undone: {name} {row.client_message_id} is {row.status}" for row in rows if row.status != "done")


def _unheard(ledger: Ledger) -> Iterator[str]:
    """The program that listened was told every message once, in the order of the inbox."""
    if ledger.heard and ledger.heard != [item.id for item in ledger.inbox]:
        missing = len({item.id for item in ledger.inbox} - set(ledger.heard))
        repeated = sum(number - 1 for number in Counter(ledger.heard).values())
        yield f"unheard: {missing} messages were not told, {repeated} twice"
