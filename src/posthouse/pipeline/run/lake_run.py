"""One run: lock the lake, vacuum, copy every source into bronze, derive every table; then publish the Merkle roots.

A run that fails or is killed is simply run again. A lock file that the kernel frees keeps runs of one host apart and is
never deleted; where a relay is at hand, its lock keeps runs of all hosts apart and is renewed by a thread while Spark
works. Locks only avoid double work: the lake's commits keep rows from being there twice. Roots are addressable events,
    kind 30101, d = lake/<epoch>/<feed>/<to>, content = the seal without its leaves, as canonical JSON
so publishing one again replaces it by the same.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import rfc8785

from posthouse.files import create_atomic, open_locked, private_dir, read_private, write_atomic
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.kinds import LAKE_ROOT
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.delta import vacuum
from posthouse.pipeline.lake.merkle import NOTE, Seal
from posthouse.pipeline.run.copy_feeds import Copier, OnStep, RunStep, ignore_step
from posthouse.pipeline.run.derive import Deriver
from posthouse.pipeline.tables.bronze import COPIES
from posthouse.pipeline.tables.catalog import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posthouse.client import Client


LOCK_NAME = "lake.lock"


@contextmanager
def hold_lake(lake: Path) -> Iterator[None]:
    """Keep every other run away from the lake; lake_busy while another one works."""
    private_dir(lake)
    try:
        fd = open_locked(lake / LOCK_NAME, wait=False)
    except BlockingIOError:
        raise error("lake_busy", path=str(lake)) from None
    try:
        yield
    finally:
        os.close(fd)


_ID_NAME = "lake.id"
_LEASE_S = 30.0
_WAIT_S = 1.0  # another run may be ending just now


@contextmanager
def with_relay_lock(lake: Path, client: Client | None) -> Iterator[None]:
    """Hold the lake's lock at a relay, or do nothing without one; lake_busy while another run holds it."""
    if client is None:
        yield
        return
    holder = _LockHolder(client, f"lake/{lake_id(lake)}", lake)
    holder.start()
    try:
        holder.wait_held()
        yield
    finally:
        holder.release()


def lake_id(lake: Path) -> str:
    """Return the name a lake has for ever, given at first use."""
    path = private_dir(lake) / _ID_NAME
    with suppress(FileExistsError):
        create_atomic(path, secrets.token_hex(16).encode())
    return read_private(path).decode()


class _LockHolder(threading.Thread):
    """Holds one lock until it is told to let go."""

    def __init__(self, client: Client, resource: str, lake: Path) -> None:
        super().__init__(name="lake-lock", daemon=True)
        self._client = client
        self._resource = resource
        self._lake = lake
        self._settled = threading.Event()
        self._done = threading.Event()
        self._failure: PosthouseError | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._hold())
        except PosthouseError as failure:
            self._failure = failure
        finally:
            self._settled.set()

    def wait_held(self) -> None:
        """Return once the lock is held, or raise why it is not."""
        self._settled.wait()
        if self._failure is not None:
            if self._failure.code in ("held", "held_by_self"):
                raise error("lake_busy", path=str(self._lake)) from self._failure
            raise self._failure

    def release(self) -> None:
        """Let go and wait until the relay knows."""
        self._done.set()
        self.join()

    async def _hold(self) -> None:
        async with self._client as client, client.lock(self._resource, lease_s=_LEASE_S, wait_s=_WAIT_S):
            self._settled.set()
            await asyncio.to_thread(self._done.wait)


PUBLISHED_NAME = "published.json"
_MANY = 200  # events sent at once


class PublishedVersions(msgspec.Struct):
    """Which commits are published where: relay -> table -> version of the last."""

    relays: dict[str, dict[str, int]] = {}


def sealed_commits(lake: Lake, table: str, after: int = -1) -> Iterator[tuple[int, Seal]]:
    """Yield the commits of a bronze table that come after a version, each with its seal."""
    for commit in lake.delta(table).history():
        if commit["version"] > after and NOTE in commit:
            yield commit["version"], msgspec.json.decode(commit[NOTE], type=Seal)


def address_of(seal: Seal) -> str:
    """Return the d of a seal's event."""
    return f"lake/{seal.epoch}/{seal.feed}/{seal.to}"


def content_of(seal: Seal) -> str:
    """Return what is published of a seal."""
    fields = msgspec.to_builtins(seal)
    del fields["leaves"]
    return rfc8785.dumps(fields).decode()


def publish_roots(lake: Lake, client: Client) -> int:
    """Publish every root that this relay has not got from this lake yet; return how many."""
    published = _read_published(lake)
    known = published.relays.setdefault(client.url.origin, {})
    found = {table: list(sealed_commits(lake, table, known.get(table, -1))) for table in COPIES}
    wanted = [seal for each in found.values() for _, seal in each]
    if wanted:
        asyncio.run(_send_roots(client, wanted))
        known |= {table: each[-1][0] for table, each in found.items() if each}
        write_atomic(lake.path / PUBLISHED_NAME, msgspec.json.encode(published))
    return len(wanted)


async def _send_roots(client: Client, wanted: list[Seal]) -> None:
    async with client:
        for start in range(0, len(wanted), _MANY):
            events = [
                client.sign(content_of(seal), kind=LAKE_ROOT, tags=[("d", address_of(seal))])
                for seal in wanted[start : start + _MANY]
            ]
            for answer in await client.publish_many(events):
                if isinstance(answer, Exception):
                    raise answer


def _read_published(lake: Lake) -> PublishedVersions:
    try:
        return msgspec.json.decode(read_private(lake.path / PUBLISHED_NAME), type=PublishedVersions)
    except FileNotFoundError:
        return PublishedVersions()


BATCH_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run has done."""

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
    tell: OnStep = ignore_step,
) -> RunReport:
    """Bring the lake up to date with its sources; lake_busy while another run works on it."""
    clock = clock or system_clock()
    with hold_lake(lake.path):
        if is_rebuild:
            _forget_derived(lake)
        _clean(lake, clock, tell)
        seals: list[Seal] = []
        for access in sources:
            seals += Copier(spark, lake, access, clock, batch_rows, tell).copy()
        Deriver(spark, lake, tell).derive()
    return RunReport(sum(seal.rows for seal in seals), tuple(seals), lake.versions())


def _forget_derived(lake: Lake) -> None:
    for table in TABLES:
        if lake.delta(table.name).path.exists():
            shutil.rmtree(lake.delta(table.name).path)


def _clean(lake: Lake, clock: Clock, tell: OnStep) -> None:
    for name in lake.names():
        if removed := vacuum(lake.delta(name), clock):
            tell(RunStep("vacuumed", name, 0, {"files": removed}))
