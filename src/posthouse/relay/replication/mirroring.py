"""The relay's side of mirrors: serve the events of a mesh, accept those of another relay, and compare the two.

A node mirrors only if the operator lists it in `relay.mirrors`, for one mesh or for all. Such a node reads the whole
mesh, direct messages included, and writes events of any author: the signature proves the author, the mirror vouches for
the rest. A mirrored event is stored and shown, and has no other effect: it opens no delivery, takes no dedupe key and
needs no fence. Only deletions have their effect, so that what an author erased is erased everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec

from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.filters import Filter
from posthouse.model.limits import MIB, SECOND_NS
from posthouse.model.mirror import MirrorFetched, MirrorPage, MirrorPushed, MirrorRefusal
from posthouse.relay.accept.mesh_registry import Meshes
from posthouse.relay.accept.submission import Answered, OnAnswers, Submitter
from posthouse.relay.replication.range_fingerprints import Message, answer, key_of
from posthouse.relay.store.event_rows import ContentRow
from posthouse.relay.store.protocol import RelayStore
from posthouse.relay.wire.accept_results import Accepted, Listen

PAGE_EVENTS = 200
PAGE_BYTES = 4 * MIB
_SEQS_PER_READ = 500
_SEQS_PER_PAGE = 40 * _SEQS_PER_READ
_KEYS_PER_READ = 50_000
MAX_KEYS = 1_000_000  # of one comparison: about 80 MB for as long as it is used
_KEPT_S = 60.0
ALL_MESHES = "*"


@dataclass(frozen=True)
class MirrorRights:
    """Which nodes may mirror which meshes: (node, mesh), or (node, "*") for all meshes."""

    pairs: frozenset[tuple[str, str]] = frozenset()

    def allow(self, node: str, mesh: str) -> bool:
        """Return True if a node may mirror a mesh."""
        return (node, mesh) in self.pairs or (node, ALL_MESHES) in self.pairs


@dataclass(slots=True)
class _KeySet:
    """The sorted keys of one comparison."""

    wanted: Filter
    keys: list[bytes]
    used_ns: int


class Mirroring:
    """Serves the mirrors of one relay, on the event loop."""

    def __init__(
        self,
        store: RelayStore,
        meshes: Meshes,
        clock: Clock,
        open_submitter: Callable[[OnAnswers, str, str], Submitter],
        from_seq: Callable[[str | None], Awaitable[int | None]],
        listen: Listen,
        rights: MirrorRights,
    ) -> None:
        self._store = store
        self._meshes = meshes
        self._clock = clock
        self._open_submitter = open_submitter
        self._from_seq = from_seq
        self._listen = listen
        self.rights = rights
        #: of readers that wait for events
        self._wakers: set[asyncio.Event] = set()
        self._comparing = asyncio.Lock()
        self._key_set: _KeySet | None = None
        self._is_stopping = False

    def stop_waiting(self) -> None:
        """Answer the waiting readers, and let no new reader wait: the relay is stopping."""
        self._is_stopping = True
        for waker in self._wakers:
            waker.set()

    async def push(self, node: str, mesh: str, events: Sequence[bytes]) -> MirrorPushed:
        """Accept events of another relay; each is verified, and stored if it is new here."""
        self._require(node, mesh)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: list[Answered] = []

        def on_answers(answered: Sequence[Answered]) -> None:
            answers.extend(answered)
            if len(answers) == len(events) and not done.done():
                done.set_result(None)

        submitter = self._open_submitter(on_answers, node, mesh)
        for event in events:  # one by one: a refused event must not hold others back, as it does in a list
            submitter.submit([event])
        await done
        accepted = [each.answer for each in answers if isinstance(each.answer, Accepted)]
        known = sum([each.duplicate for each in accepted])
        refused = [
            MirrorRefusal(each.event_id, each.answer.error.code)
            for each in answers
            if not isinstance(each.answer, Accepted)
        ]
        return MirrorPushed(len(accepted) - known, known, refused)

    async def read(self, node: str, wanted: Filter, after: str | None, wait_s: float) -> MirrorPage:
        """Return events of a mesh after a cursor; wait up to `wait_s` for the first one."""
        self._require(node, wanted.mesh or "")
        seq = await self._from_seq(after) or 0
        with self._woken_by_commits() as waker:
            page = await self._read_page(wanted, seq)
            if not page.events and page.is_end and wait_s > 0 and not self._is_stopping:
                with suppress(TimeoutError):
                    await asyncio.wait_for(waker.wait(), wait_s)
                page = await self._read_page(wanted, seq)
        return page

    @contextmanager
    def _woken_by_commits(self) -> Iterator[asyncio.Event]:
        """Yield an event that the next commit sets, even if the commit happens before the wait begins."""
        waker = asyncio.Event()
        self._wakers.add(waker)
        stop_listening = self._listen(lambda _batch: waker.set())
        try:
            yield waker
        finally:
            stop_listening()
            self._wakers.discard(waker)

    async def fetch(self, node: str, mesh: str, ids: Sequence[str]) -> MirrorFetched:
        """Return events of a mesh by their ids; for some only the id still exists."""
        self._require(node, mesh)
        found = [each for each in await self._store.find_contents(ids) if each.mesh == mesh]
        events = [msgspec.Raw(each.raw) for each in found if each.raw is not None]
        return MirrorFetched(events, [each.id for each in found if each.raw is None])

    async def compare(self, node: str, wanted: Filter, message: Message) -> Message:
        """Answer a message of range fingerprints about the events that match a filter."""
        self._require(node, wanted.mesh or "")
        async with self._comparing:  # one set of keys at a time
            keys = await self._load_keys(wanted)
            return await asyncio.to_thread(answer, keys, message)

    def _require(self, node: str, mesh: str) -> None:
        if not self.rights.allow(node, mesh):
            raise error("mirror_not_allowed", node=node, mesh=mesh)
        if (refusal := self._meshes.mesh_error(mesh)) is not None:
            raise refusal

    async def _read_page(self, wanted: Filter, seq: int) -> MirrorPage:
        extent = await self._store.extent()
        events: list[msgspec.Raw] = []
        size, stop = 0, min(extent.head, seq + _SEQS_PER_PAGE)
        while seq < stop and len(events) < PAGE_EVENTS and size < PAGE_BYTES:
            through = min(seq + _SEQS_PER_READ, stop)
            for row in await self._store.contents_between(seq, through):
                if row.raw is None or not _matches(wanted, row):
                    continue
                if len(events) >= PAGE_EVENTS or size >= PAGE_BYTES:
                    through = row.seq - 1
                    break
                events.append(msgspec.Raw(row.raw))
                size += len(row.raw)
            seq = through
        return MirrorPage(events, str(extent.cursor(seq)), seq >= extent.head)

    async def _load_keys(self, wanted: Filter) -> list[bytes]:
        """Return the sorted keys of a comparison; they stay the same as long as it continues."""
        now_ns = self._clock.boot_ns()
        kept = self._key_set
        if kept is None or kept.wanted != wanted or now_ns - kept.used_ns > _KEPT_S * SECOND_NS:
            self._key_set = None
            kept = self._key_set = _KeySet(wanted, await self._read_keys(wanted), now_ns)
            asyncio.get_running_loop().call_later(2 * _KEPT_S, self._drop_keys)
        kept.used_ns = now_ns
        return kept.keys

    async def _read_keys(self, wanted: Filter) -> list[bytes]:
        head = (await self._store.extent()).head
        keys: list[bytes] = []
        for after in range(0, head, _KEYS_PER_READ):
            rows = await self._store.event_keys(wanted, after, min(after + _KEYS_PER_READ, head))
            keys += [key_of(at_ns, id_) for at_ns, id_ in rows]
            if len(keys) > MAX_KEYS:
                raise error("comparison_too_large", limit=MAX_KEYS)
        await asyncio.to_thread(keys.sort)
        return keys

    def _drop_keys(self) -> None:
        kept = self._key_set
        if kept is not None and self._clock.boot_ns() - kept.used_ns > _KEPT_S * SECOND_NS:
            self._key_set = None


def _matches(wanted: Filter, row: ContentRow) -> bool:
    return (
        row.mesh == wanted.mesh
        and (wanted.authors is None or row.author in wanted.authors)
        and (wanted.kinds is None or row.kind in wanted.kinds)
        and (wanted.since_ns is None or row.created_at_ns >= wanted.since_ns)
        and (wanted.until_ns is None or row.created_at_ns <= wanted.until_ns)
    )
