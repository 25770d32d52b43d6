"""Housekeeping of a relay's store: sweep expired events, write refusal counts and the high-water mark, prune records.

Sweeping and refusal counts run once a minute. A clock that is ahead would delete events before they expire, so nothing
is swept within an hour after a start or a step of the clock; readers do not see expired events in the meantime. Pruning
runs on request, after the archive's digests were compared with those of the store. The digests are computed outside the
writer and still hold when the rows are deleted, because records and content without an expiration never change. All
work runs in small transactions between other batches. If the relay is killed during a pruning, the next one has a
shorter range to delete.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TypeVar

import structlog
from blake3 import blake3

from posthouse.journal.digest import Record, canonical_line, content_digest
from posthouse.keys.identity import same_token
from posthouse.model.api import ArchivedRange
from posthouse.model.clock import Clock, SteadyTime
from posthouse.model.errors import PosthouseError, error
from posthouse.relay.accept.group_commit import GroupCommitter
from posthouse.relay.accept.path import Refusals
from posthouse.relay.store.event_rows import Pruned, Released, StoreSpace
from posthouse.relay.store.high_water import HighWater, MarkFile
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.store.shared_store import Charge

log = structlog.get_logger(__name__)
R = TypeVar("R")
INTERVAL_S = 60.0
SWEEP_ROWS = 200  # per transaction: other writes wait for a few milliseconds


@contextlib.contextmanager
def _warn(event: str) -> Iterator[None]:
    """Log a failure of the body and continue: the next round tries again."""
    try:
        yield
    except PosthouseError as failure:
        log.warning(event, reason=str(failure))
    except Exception:
        log.exception(event)


class Housekeeping:
    """The regular work, as a task of the running loop."""

    def __init__(
        self,
        store: RelayStore,
        refusals: Refusals,
        committer: GroupCommitter,
        clock: Clock,
        charge: Charge,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._store = store
        self._charge = charge
        self._committer = committer
        self._refusals = refusals
        self._clock = clock
        self._time = SteadyTime(clock)
        self._interval_s = interval_s
        self._task = asyncio.create_task(self._serve(), name="housekeeping")

    async def close(self) -> None:
        """Stop the task and write the remaining refusal counts."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        with _warn("refusals_not_written"):
            await self._refusals.write(self._store, everything=True)

    async def run_once(self) -> int:
        """Write refusal counts, sweep expired events and finish deletions; return how many events were swept."""
        await self._refusals.write(self._store)
        is_steady = self._time.is_steady()
        if not self._charge.is_here:
            return 0
        swept = await self._sweep_expired() if is_steady else 0
        while await self._submit(lambda unit: unit.finish_deletions(SWEEP_ROWS)):
            pass
        return swept

    async def _sweep_expired(self) -> int:
        self._committer.flush_deferred()  # the sweep closes deliveries: it must see them as sent
        swept, now_ns = 0, self._clock.wall_ns()
        while count := await self._submit(lambda unit: unit.sweep_expired(now_ns, SWEEP_ROWS)):
            swept += count
        return swept

    def _submit(self, work: Callable[[Unit], R]) -> asyncio.Future[R]:
        return self._store.submit(self._charge.fenced(work))

    async def _serve(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            with _warn("housekeeping_failed"):
                if swept := await self.run_once():
                    log.info("expired_events_swept", events=swept)


RELEASED_PAGES = 256  # per transaction: a megabyte


async def compact(store: RelayStore) -> tuple[StoreSpace, StoreSpace]:
    """Give free space back to the file system in small steps; return the size before and after."""
    before = await store.space()
    if not before.is_incremental:
        raise error("store_not_compactable")
    while await store.submit(lambda unit: unit.release_pages(RELEASED_PAGES)):
        pass
    return before, await store.space()


MARK_INTERVAL_S = 3.0  # of records that a kill -9 may leave above the mark


class MarkKeeper:
    """Writes the high-water mark while the store grows, as a task of the running loop, and when it closes."""

    def __init__(self, store: RelayStore, clock: Clock, file: MarkFile, interval_s: float = MARK_INTERVAL_S) -> None:
        self._store = store
        self._clock = clock
        self._file = file
        self._interval_s = interval_s
        self._written = HighWater("", -1, 0, "", 0)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Write the first mark, so that a place that cannot be written is found now, and keep it up to date."""
        await self.write()
        self._task = asyncio.create_task(self._serve(), name="high-water mark")

    async def close(self) -> None:
        """Write the last mark; the store must still be open."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        with _warn("high_water_not_written"):
            await self.write()

    async def write(self) -> None:
        """Write the mark if the store has grown."""
        # read before the head: a lease that has ended at this time had also ended when the head was read
        boot_ns = self._clock.boot_ns()
        token_counter = await self._store.last_token()
        extent = await self._store.extent()
        if (extent.epoch, extent.head) == (self._written.epoch, self._written.head):
            return
        shared = self._store.shared
        server = None if shared is None else shared.server
        mark = HighWater(extent.epoch, extent.head, token_counter, self._clock.boot_id, boot_ns, server=server)
        await asyncio.to_thread(self._file.write, mark)
        self._written = mark

    async def _serve(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            with _warn("high_water_not_written"):
                await self.write()


MAX_RECORDS = 20_000  # per request: takes a few seconds and one snapshot
STEP_RECORDS = 200  # per transaction: other writes wait for some milliseconds
_PAGE = 1_000  # records per read


class Pruning:
    """Prunes the store of one relay, one request at a time."""

    def __init__(self, store: RelayStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        #: where the next pruning continues to check kept events
        self._kept_after = 0

    async def prune(self, archived: ArchivedRange) -> tuple[Pruned, int]:
        """Delete a range if the archive holds it; return what was deleted and the oldest remaining seq."""
        async with self._lock:
            await self._check_range(archived)
            newest = await self._check_records(archived)
            if archived.contents is not None:
                await self._check_contents(archived, archived.contents)
            horizon_ns = None if archived.contents is None else newest.at_ns
            pruned = await self._delete(archived, horizon_ns)
            released = 0 if horizon_ns is None else await self._release(horizon_ns, pruned.records)
            return Pruned(pruned.records, pruned.emptied + released), archived.to_seq + 1

    async def _check_range(self, archived: ArchivedRange) -> None:
        if archived.epoch != self._store.epoch:
            raise error("epoch_mismatch", epoch=self._store.epoch)
        extent = await self._store.extent()
        oldest, last = extent.pruned_through + 1, min(extent.head, extent.pruned_through + MAX_RECORDS)
        if archived.from_seq != oldest or not oldest <= archived.to_seq <= last:
            raise error(
                "prune_range_invalid",
                from_seq=archived.from_seq,
                to_seq=archived.to_seq,
                most=MAX_RECORDS,
                oldest_seq=oldest,
            )

    async def _check_records(self, archived: ArchivedRange) -> Record:
        """Compare the digest of the records and return the newest of them."""
        hasher = blake3()
        newest: Record | None = None
        async for page in self._pages(archived):
            await asyncio.to_thread(_hash_lines, hasher, map(canonical_line, page))
            newest = page[-1]
        assert newest is not None  # the range is not empty
        _compare_digests(archived, archived.digest, hasher.hexdigest())
        return newest

    async def _pages(self, archived: ArchivedRange) -> AsyncIterator[list[Record]]:
        after = archived.from_seq - 1
        while after < archived.to_seq:
            page = await self._store.journal(after, min(_PAGE, archived.to_seq - after))
            yield page
            after = page[-1].seq

    async def _check_contents(self, archived: ArchivedRange, given: str) -> None:
        hasher = blake3()
        for after in range(archived.from_seq - 1, archived.to_seq, _PAGE):
            page = await self._store.contents(after, min(after + _PAGE, archived.to_seq))
            if archived.contents_version == 1:  # from the lake of an older posthouse, without removed content
                lines = [raw + b"\n" for raw, _digest in page if raw is not None]
            else:
                lines = [digest or b"" if raw is None else content_digest(raw) for raw, digest in page]
            await asyncio.to_thread(_hash_lines, hasher, lines)
        _compare_digests(archived, given, hasher.hexdigest())

    async def _delete(self, archived: ArchivedRange, horizon_ns: int | None) -> Pruned:
        snapshot_seq = await self._store.submit(lambda unit: unit.snapshot_journal(archived.to_seq))
        records = emptied = 0
        for start in range(archived.from_seq, archived.to_seq + 1, STEP_RECORDS):
            step = await self._prune(min(start + STEP_RECORDS - 1, archived.to_seq), snapshot_seq, horizon_ns)
            records, emptied = records + step.records, emptied + step.emptied
        return Pruned(records, emptied)

    async def _release(self, horizon_ns: int, most: int) -> int:
        """Release kept events that need not be kept any longer; return how many.

        Checks about as many as records were deleted and continues there next time, so the cost is bounded by the gain.
        """
        released = checked = ends = 0
        while checked < most and ends < 2:  # it wraps around: at the second end every kept event was checked
            step = await self._release_kept(self._kept_after, horizon_ns)
            self._kept_after = step.through_seq or 0
            released, checked = released + step.emptied, checked + step.checked
            ends += step.through_seq is None
        return released

    def _prune(self, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> asyncio.Future[Pruned]:
        return self._store.submit(lambda unit: unit.prune(through_seq, snapshot_seq, horizon_ns))

    def _release_kept(self, after_seq: int, horizon_ns: int) -> asyncio.Future[Released]:
        return self._store.submit(lambda unit: unit.release_kept(after_seq, horizon_ns, STEP_RECORDS))


def _hash_lines(hasher: blake3, lines: Iterable[bytes]) -> None:
    for line in lines:
        hasher.update(line)


def _compare_digests(archived: ArchivedRange, given: str, actual: str) -> None:
    if not same_token(given, actual):
        # without the actual digest: a caller must prove that it has the records, not repeat what the relay told it
        raise error("digest_mismatch", from_seq=archived.from_seq, to_seq=archived.to_seq)
