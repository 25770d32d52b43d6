"""A look at the traffic of a bus: mailboxes, rates over the last seconds, and the newest facts of its journal.

It only reads: the endpoints and counters through the bus, the facts from the journal, as a tap would. Rates are what
the journal tells about a window that ends now; nothing is counted in between two looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posthouse.cli.bus.message import shorten
from posthouse.model.limits import SECOND_NS

if TYPE_CHECKING:
    from pathlib import Path

    from posthouse.bus import Bus
    from posthouse.journal.read import Record

WINDOW_S = 10
_TAIL = 20_000  # records read back at most: bounds one look on a busy bus
_PAGE = 1_000
_KINDS = ("published", "handled", "failed", "dead", "refused")


@dataclass(frozen=True)
class Fact:
    """One line of the journal, for people."""

    at_ns: int
    kind: str
    sender: str
    endpoint: str
    text: str


@dataclass(frozen=True)
class Mailbox:
    """One endpoint and how it feels."""

    subject: str
    owner: str | None
    depth: int
    circuit: str
    failures: int


@dataclass(frozen=True)
class Traffic:
    """What `bus top` shows at one moment."""

    at_ns: int
    mailboxes: list[Mailbox]
    #: facts per second over the window, by kind
    rates: dict[str, float]
    #: messages the index knows, by status
    by_status: dict[str, int]
    dead_letters: int
    recent: list[Fact] = field(default_factory=list)


async def look(bus: Bus, now_ns: int, recent: int) -> Traffic:
    """Return the traffic of this moment with the newest `recent` facts."""
    breakers = {breaker.subject: breaker for breaker in await bus.breakers()}
    metrics = await bus.metrics()
    facts, counts = _read_tail(bus.path / "bus.db", now_ns, recent)
    return Traffic(
        at_ns=now_ns,
        mailboxes=[
            Mailbox(
                endpoint.subject,
                endpoint.owner,
                count_mail(bus.path, endpoint.hash),
                str(breakers[endpoint.subject].circuit) if endpoint.subject in breakers else "CLOSED",
                breakers[endpoint.subject].failures if endpoint.subject in breakers else 0,
            )
            for endpoint in await bus.list_endpoints()
        ],
        rates={kind: round(counts[kind] / WINDOW_S, 1) for kind in _KINDS},
        by_status=dict(metrics.by_status),
        dead_letters=metrics.by_status.get("dlq", 0),
        recent=facts,
    )


def count_mail(root: Path, mailbox: str) -> int:
    """Return how many messages wait or are in work in a mailbox: the files are the truth."""
    folder = root / "mailboxes" / mailbox
    try:
        return sum(1 for box in ("new", "cur") for _ in (folder / box).iterdir())
    except FileNotFoundError:  # unregistered a moment ago
        return 0


def _read_tail(path: Path, now_ns: int, recent: int) -> tuple[list[Fact], Counter[str]]:
    since_ns = now_ns - WINDOW_S * SECOND_NS
    counts: Counter[str] = Counter()
    facts: list[Fact] = []
    for record in _newest_first(path):
        if record.at_ns < since_ns and len(facts) >= recent:
            break
        kind = record.type.removeprefix("bus.")
        if kind not in _KINDS:
            continue
        body = record.decoded_body()
        if record.at_ns >= since_ns:
            counts[kind] += body.get("count", 1)
        if len(facts) < recent:
            facts.append(_fact(record, kind, body))
    return facts, counts


def _newest_first(path: Path) -> Iterator[Record]:
    from posthouse.journal.read import read_after, read_extent
    from posthouse.sqlite.connection import open_reader

    db = open_reader(path)
    try:
        head = read_extent(db).head
        low = head
        while low > max(0, head - _TAIL):
            start = max(0, low - _PAGE)
            yield from reversed([record for record in read_after(db, start, _PAGE) if record.seq <= low])
            low = start
    finally:
        db.close()


def _fact(record: Record, kind: str, body: dict[str, Any]) -> Fact:
    envelope = body.get("envelope")
    text = shorten(envelope["payload"]) if envelope else str(body.get("reason") or "")
    endpoint = envelope["subject"] if envelope else str(body.get("endpoint") or body.get("key") or "")
    return Fact(record.at_ns, kind, record.actor or "", endpoint, text)
