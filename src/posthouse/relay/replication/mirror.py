"""`posthouse relay mirror`: carry the signed events of one mesh from a relay to another, in one or both directions.

    read after a cursor -> push        every few minutes: compare both relays by range fingerprints -> fetch -> push

The mirror is a client of both relays. It keeps a cursor for each direction in a file and continues there after a
restart; the comparison finds what cursors miss (a restored relay, a lost file, an event that was refused for a while).
A relay recognizes an event that returns by its id, so two mirrors never make a loop. The mirror changes nothing and
trusts nothing: the target verifies every signature.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from posthouse.client import Client
from posthouse.client.failures import Backoff
from posthouse.files import private_dir, read_private, write_atomic
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.limits import MIB, SECOND_NS
from posthouse.model.mirror import FETCH_MAX_IDS, PUSH_MAX_EVENTS, MirrorPushed
from posthouse.relay.replication.range_fingerprints import (
    Message,
    decode_message,
    difference_of,
    encode_message,
    first_message,
    is_settled,
)

log = structlog.get_logger(__name__)
POLL_S = 10.0
COMPARE_S = 600.0
_PUSH_BYTES = 4 * MIB
_RETRY_MAX_S = 30.0
_TRY_AGAIN = frozenset({"relay_unreachable", "token_invalid", "answer_invalid", "relay_stopping"})


@dataclass(frozen=True)
class MirrorPlan:
    """What to mirror."""

    mesh: str
    #: as JSON: authors, kinds, since_ns, until_ns
    wanted: dict[str, Any] = field(default_factory=dict)
    is_both_ways: bool = False


@dataclass(slots=True)
class Mirrored:
    """What a mirror has done since it started."""

    stored: int = 0
    known: int = 0
    refused: int = 0
    #: differing ids whose content neither relay still has
    gone: int = 0
    #: bytes of fingerprints that the comparisons exchanged
    compared_bytes: int = 0

    def add(self, pushed: MirrorPushed) -> None:
        """Add up the outcomes of pushed events."""
        self.stored += pushed.stored
        self.known += pushed.known
        self.refused += len(pushed.refused)


class Direction:
    """Carries events from one relay to the other."""

    def __init__(self, source: Client, target: Client, plan: MirrorPlan, folder: Path, done: Mirrored) -> None:
        self.source = source
        self.target = target
        self._plan = plan
        self._folder = folder
        self._done = done

    async def copy_new(self, wait_s: float) -> bool:
        """Push the events after the cursor; return False at the end of them."""
        path = await self._cursor_file()
        after = _read_cursor(path)
        try:
            page = await self.source.copies.read_events(self._plan.mesh, self._plan.wanted, after=after, wait_s=wait_s)
        except PosthouseError as failure:
            if failure.code not in ("cursor_reset", "cursor_pruned"):
                raise
            log.warning("cursor_moved", relay=self.source.url.origin, reason=str(failure))
            write_atomic(path, str(failure.fields["cursor"]).encode())
            return True
        await self.push([bytes(event) for event in page.events])
        if page.cursor != after:
            write_atomic(path, page.cursor.encode())
        return not page.is_end

    async def push(self, events: Sequence[bytes]) -> None:
        """Push events in requests of bounded size."""
        for batch in _batches(events):
            pushed = await self.target.copies.push(self._plan.mesh, batch)
            self._done.add(pushed)
            for refusal in pushed.refused:
                log.warning("event_refused", id=refusal.id, code=refusal.code, relay=self.target.url.origin)

    async def push_missing(self, ids: Iterable[bytes]) -> None:
        """Fetch events that only the source has, and push those that still have their content."""
        wanted = [each.hex() for each in ids]
        for start in range(0, len(wanted), FETCH_MAX_IDS):
            fetched = await self.source.copies.fetch(self._plan.mesh, wanted[start : start + FETCH_MAX_IDS])
            self._done.gone += len(fetched.gone)
            await self.push([bytes(event) for event in fetched.events])

    async def _cursor_file(self) -> Path:
        """Return the file of the cursor: it belongs to two relays, a mesh and a filter."""
        names = [await relay_of(client) for client in (self.source, self.target)]
        text = msgspec.json.encode([*names, self._plan.mesh, self._plan.wanted], order="sorted")
        return private_dir(self._folder) / f"{hashlib.sha256(text).hexdigest()[:32]}.cursor"


class Mirror:
    """Mirrors one mesh between two relays."""

    def __init__(
        self,
        first: Client,
        second: Client,
        plan: MirrorPlan,
        folder: Path,
        clock: Clock,
        on_complete: Callable[[Mirrored], None] = lambda _done: None,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._on_complete = on_complete
        self.done = Mirrored()
        self._clients = (first, second)
        self._there = Direction(first, second, plan, folder, self.done)
        self._back = Direction(second, first, plan, folder, self.done)

    async def run(self, compare_s: float = COMPARE_S) -> None:
        """Mirror until cancelled; raise failures that only an operator can fix."""
        await self._retry(self._catch_up)
        directions = (self._there, self._back) if self._plan.is_both_ways else (self._there,)
        async with asyncio.TaskGroup() as tasks:
            for direction in directions:
                tasks.create_task(self._keep(partial(direction.copy_new, POLL_S)))
            tasks.create_task(self._keep(partial(self._compare_and_wait, compare_s)))

    async def run_once(self) -> Mirrored:
        """Copy the events after the cursors, compare once, and return the counts."""
        await self._catch_up()
        await self.compare()
        return self.done

    async def compare(self) -> None:
        """Find what one of the relays lacks and carry it there."""
        first, second = self._clients
        await _refuse_same(first, second)
        for wanted in await self._windows():
            here, there = await self._exchange(wanted)
            await self._there.push_missing(here)
            if self._plan.is_both_ways:
                await self._back.push_missing(there)
        self._on_complete(self.done)

    async def _catch_up(self) -> None:
        await _refuse_same(*self._clients)
        while await self._there.copy_new(0):
            pass
        while self._plan.is_both_ways and await self._back.copy_new(0):
            pass

    async def _compare_and_wait(self, compare_s: float) -> None:
        await self.compare()
        await asyncio.sleep(compare_s)

    async def _keep(self, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await self._retry(work)

    async def _retry(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do a piece of work; after a failure of the network wait and try again."""
        backoff = Backoff(max_s=_RETRY_MAX_S)
        while True:
            try:
                await work()
                return
            except PosthouseError as failure:
                if not isinstance(failure, Transient) and failure.code not in _TRY_AGAIN:
                    raise
                log.warning("mirror_waits", reason=str(failure))
                await asyncio.sleep(backoff.next_s())

    async def _windows(self) -> list[dict[str, Any]]:
        """Return the filters of the comparisons: events whose ids both relays still know, in parts that fit."""
        behind_s = min([(await client.info())["limits"]["created_at_behind_s"] for client in self._clients])
        oldest_ns = max(0, self._clock.wall_ns() - behind_s * SECOND_NS)
        since_ns = max(oldest_ns, self._plan.wanted.get("since_ns", 0))
        wanted = self._plan.wanted | {"since_ns": since_ns}
        wanted.setdefault("until_ns", self._clock.wall_ns() + SECOND_NS)
        return await self._fitting(wanted)

    async def _fitting(self, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        """Halve the time of a comparison until both relays can hold its keys."""
        try:
            for client in self._clients:
                await client.copies.compare(self._plan.mesh, wanted, encode_message(first_message()))
        except PosthouseError as failure:
            middle = (wanted["since_ns"] + wanted["until_ns"]) // 2
            if failure.code != "comparison_too_large" or middle == wanted["since_ns"]:
                raise
            older = await self._fitting(wanted | {"until_ns": middle})
            return older + await self._fitting(wanted | {"since_ns": middle + 1})
        return [wanted]

    async def _exchange(self, wanted: dict[str, Any]) -> tuple[list[bytes], list[bytes]]:
        """Carry messages between the relays until nothing is left to answer; return what only each of them has."""
        only: tuple[list[bytes], list[bytes]] = ([], [])
        message, side = first_message(), 0
        while not is_settled(message):
            message = await self._ask(self._clients[side], wanted, message)
            found = difference_of(message)
            only[side].extend(found.here)
            only[1 - side].extend(found.there)
            side = 1 - side
        return only

    async def _ask(self, client: Client, wanted: dict[str, Any], message: Message) -> Message:
        data = encode_message(message)
        answered = await client.copies.compare(self._plan.mesh, wanted, data)
        self.done.compared_bytes += len(data) + len(answered)
        try:
            return decode_message(answered)
        except ValueError as fault:
            raise error("answer_invalid", relay=client.url.origin, reason=str(fault)) from fault


async def relay_of(client: Client) -> str:
    """Return the node id of a client's relay."""
    await client.token()
    assert client.relay is not None  # a token comes after the relay has named itself
    return client.relay


async def _refuse_same(first: Client, second: Client) -> None:
    if await relay_of(first) == await relay_of(second):
        raise error("usage", text="both addresses belong to the same relay", hint="Give two relays.")


def _batches(events: Sequence[bytes]) -> Iterable[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for event in events:
        if batch and (len(batch) >= PUSH_MAX_EVENTS or size + len(event) > _PUSH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += len(event)
    if batch:
        yield batch


def _read_cursor(path: Path) -> str | None:
    try:
        return read_private(path).decode("ascii", "replace")
    except FileNotFoundError:
        return None
