"""One run: lock the lake, vacuum, copy every source to bronze, erase, derive every table; then publish Merkle roots.

A run that fails or is killed can be repeated. A file lock, which the kernel releases, excludes other runs on the
host; the lock file is never deleted, and a lake in S3 has none. With a relay, its lock excludes runs on all hosts; a
thread renews it while Spark works, and a run whose lease was lost to another run ends before it deletes anything. The
locks mostly avoid duplicate work: the lake's commits prevent duplicate rows.
Roots are addressable events,
    kind 30101, d = lake/<epoch>/<feed>/<to>, content = the seal without its leaves, as canonical JSON
so publishing a root again replaces it with the same event.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import rfc8785

from posthouse.files import create_atomic, open_locked, private_dir, read_private, write_atomic
from posthouse.journal.erase import ErasureRequest
from posthouse.model.clock import Clock, format_utc, system_clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import LAKE_ROOT
from posthouse.model.limits import MILLISECOND_NS
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.merkle import Seal
from posthouse.pipeline.lake.storage import LocalStorage
from posthouse.pipeline.run.copy_feeds import Copier, OnStep, ignore_step
from posthouse.pipeline.run.derive import Deriver
from posthouse.pipeline.run.erase_rows import Eraser, LoadKey, no_key
from posthouse.pipeline.run.upkeep import DEFAULT_UPKEEP, Upkeep, migrate_lake, tidy_lake, vacuum_lake
from posthouse.pipeline.tables.bronze import COPIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posthouse.client import Client
    from posthouse.client.locks.held_lock import Held


LOCK_NAME = "lake.lock"


@contextmanager
def hold_lake(lake: Lake) -> Iterator[None]:
    """Hold the lake's file lock; raise lake_busy if another run holds it. In S3 only the commits exclude other runs."""
    if not isinstance(lake.storage, LocalStorage):
        yield
        return
    lake.storage.prepare()
    try:
        fd = open_locked(lake.path / LOCK_NAME, wait=False)
    except BlockingIOError:
        raise error("lake_busy", path=lake.location) from None
    try:
        yield
    finally:
        os.close(fd)


_ID_NAME = "lake.id"
_LEASE_S = 30.0
_WAIT_S = 1.0  # another run may be about to end
_RETRY_S = 1.0  # between attempts while the relay does not answer
#: Raises lake_busy if another run has taken the lake from this one.
CheckLease = Callable[[], None]


def no_lease() -> None:
    """Do nothing: without a relay there is no lease."""


@contextmanager
def with_relay_lock(lake: Lake, client: Client | None) -> Iterator[CheckLease]:
    """Hold the lake's lock at a relay; raise lake_busy if another run holds it. Without a client, do nothing.

    Yield a function that the run calls before work that another run must not do at the same time.
    """
    if client is None:
        yield no_lease
        return
    holder = _LockHolder(client, f"lake/{lake_id(lake)}", lake)
    holder.start()
    try:
        holder.wait_held(None)
        yield holder.check
    finally:
        holder.release()


def lake_id(lake: Lake) -> str:
    """Return the permanent id of a lake: in a directory created on first use, in S3 derived from the address."""
    if not isinstance(lake.storage, LocalStorage):
        return hashlib.sha256(lake.location.encode()).hexdigest()[:32]
    path = private_dir(lake.path) / _ID_NAME
    with suppress(FileExistsError):
        create_atomic(path, secrets.token_hex(16).encode())
    return read_private(path).decode()


class _LockHolder(threading.Thread):
    """Hold a relay lock until `release`.

    A healthy run may miss its renewals if its process gets no processor time. Then the lock is acquired again, and the
    run continues unless another run has taken the lake.
    """

    def __init__(self, client: Client, resource: str, lake: Lake) -> None:
        super().__init__(name="lake-lock", daemon=True)
        self._client = client
        self._resource = resource
        self._lake = lake
        self._changed = threading.Condition()
        self._held: Held | None = None
        #: The reason why the lock is not held; permanent if `_is_over`.
        self._failure: PosthouseError | None = None
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._released = asyncio.Event()

    def run(self) -> None:
        try:
            asyncio.run(self._hold())
        except PosthouseError as failure:
            self._note(failure)
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def check(self) -> None:
        """Return if the lock is certainly held; wait at most one lease for a lost lock to be acquired again."""
        self.wait_held(_LEASE_S)

    def wait_held(self, timeout_s: float | None) -> None:
        """Return when the lock is certainly held, or raise an error that says why it is not."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._is_held(), timeout_s)
            if self._is_held():
                return
            failure = self._failure
        if failure is None or failure.code in ("held", "held_by_self", "lock_lost"):
            raise _leased(self._lake, failure.fields.get("remaining_ms") if failure else None) from failure
        raise failure

    def release(self) -> None:
        """Release the lock and wait for the relay's answer."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the thread has ended with a failure
                self._loop.call_soon_threadsafe(self._released.set)
        self.join()

    def _is_held(self) -> bool:
        return self._held is not None and self._held.is_valid()

    def _note(self, failure: PosthouseError) -> None:
        with self._changed:
            self._failure = failure

    async def _hold(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._client as client:
            while not self._released.is_set():
                try:
                    await self._hold_lease(client)
                except PosthouseError as failure:
                    self._note(failure)
                    if self._held is None or not (failure.code == "lock_lost" or isinstance(failure, Transient)):
                        raise
                    await asyncio.sleep(0 if failure.code == "lock_lost" else _RETRY_S)

    async def _hold_lease(self, client: Client) -> None:
        """Hold one lease until `release`, or raise lock_lost when it has ended."""
        async with client.lock(self._resource, lease_s=_LEASE_S, wait_s=_WAIT_S) as held:
            with self._changed:
                self._held = held
                self._changed.notify_all()
            await self._released.wait()


def _leased(lake: Lake, remaining_ms: int | None) -> PosthouseError:
    """Return lake_busy for a lake whose lease at the relay has not ended; a killed run leaves such a lease too."""
    if not remaining_ms:
        return error("lake_busy", path=lake.location)
    until = format_utc(system_clock().wall_ns() + remaining_ms * MILLISECOND_NS)
    hint = f"That run's lease at the relay lasts until {until}, and longer while that run works. Try again then."
    return error("lake_busy", path=lake.location, until=until, retry_after_s=remaining_ms / 1000, hint=hint)


PUBLISHED_NAME = "published.json"
_BATCH = 200  # events per request


class PublishedVersions(msgspec.Struct):
    """The last published commit: relay -> table -> version."""

    relays: dict[str, dict[str, int]] = {}


def address_of(seal: Seal) -> str:
    """Return the d tag of a seal's event."""
    return f"lake/{seal.epoch}/{seal.feed}/{seal.to}"


def content_of(seal: Seal) -> str:
    """Return the content of a seal's event."""
    fields = msgspec.to_builtins(seal)
    del fields["leaves"]
    return rfc8785.dumps(fields).decode()


def publish_roots(lake: Lake, client: Client) -> int:
    """Publish every root that this lake has not yet published to the client's relay; return their number."""
    published = _read_published(lake)
    known = published.relays.setdefault(client.url.origin, {})
    commits = {table: lake.sealed_commits(table, known.get(table, -1)) for table in COPIES}
    seals = [commit.seal for of_table in commits.values() for commit in of_table]
    if seals:
        asyncio.run(_send_roots(client, seals))
        known |= {table: of_table[-1].version for table, of_table in commits.items() if of_table}
        write_atomic(private_dir(lake.path) / PUBLISHED_NAME, msgspec.json.encode(published))
    return len(seals)


async def _send_roots(client: Client, seals: list[Seal]) -> None:
    async with client:
        for start in range(0, len(seals), _BATCH):
            events = [
                client.sign(content_of(seal), kind=LAKE_ROOT, tags=[("d", address_of(seal))])
                for seal in seals[start : start + _BATCH]
            ]
            for result in await client.publish_many(events):
                if isinstance(result, Exception):
                    raise result


def _read_published(lake: Lake) -> PublishedVersions:
    try:
        return msgspec.json.decode(read_private(lake.path / PUBLISHED_NAME), type=PublishedVersions)
    except FileNotFoundError:
        return PublishedVersions()


BATCH_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of a run."""

    rows: int
    seals: tuple[Seal, ...]
    versions: dict[str, int]


def bring_up_to_date(
    spark: SparkSession,
    lake: Lake,
    sources: Sequence[Access],
    *,
    clock: Clock | None = None,
    batch_rows: int = BATCH_ROWS,
    is_rebuild: bool = False,
    upkeep: Upkeep = DEFAULT_UPKEEP,
    on_step: OnStep = ignore_step,
    load_key: LoadKey = no_key,
    erasure: ErasureRequest | None = None,
    check_lease: CheckLease = no_lease,
) -> RunReport:
    """Bring the lake up to date with its sources; raise lake_busy if another run holds the lake.

    Content that the sources have erased, or that `erasure` selects, is erased from the lake; `load_key` returns the key
    that signs the erasure records. `check_lease` is called before steps that are not safe while another run works.
    """
    clock = clock or system_clock()
    with hold_lake(lake):
        migrate_lake(lake, on_step)
        vacuum_lake(lake, clock, on_step)
        seals: list[Seal] = []
        for access in sources:
            seals += Copier(spark, lake, access, clock, batch_rows, on_step).copy()
            check_lease()
        eraser = Eraser(lake, load_key, clock, on_step)
        eraser.erase(erasure)
        Deriver(spark, lake, on_step, is_rebuild=is_rebuild).derive()
        check_lease()  # a purge deletes the files that another run has written and not yet committed
        eraser.purge()
        tidy_lake(lake, clock, upkeep, on_step)
    return RunReport(sum(seal.rows for seal in seals), tuple(seals), lake.versions())
