"""A leader inside the test's loop, its copies, and what a store holds, table by table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from posthouse.files import private_dir
from posthouse.model.clock import Clock, FakeClock
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.replication.followed_copy import FollowedCopy, replace_copy
from posthouse.relay.replication.followers import FollowSettings
from posthouse.relay.store.sqlite.recording import RECORDING_TABLES
from posthouse.sqlite.connection import open_reader
from tests.relay.authors import ALICE, Author

FOLLOWER = Author(50).node
RELAY = Author(99).node
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"


@asynccontextmanager
async def leading(
    folder: Path, clock: Clock | None = None, *, absent_s: float = 3_600, max_bytes: int = 2**26
) -> AsyncIterator[RelayEngine]:
    """Run a relay without sockets that one node may follow."""
    settings = EngineSettings(
        folder,
        RELAY,
        admins=(ALICE.node,),
        follow=FollowSettings(frozenset({FOLLOWER}), absent_s),
        follow_max_bytes=max_bytes,
    )
    engine = await RelayEngine.start(settings, clock or FakeClock())
    try:
        yield engine
    finally:
        await engine.close()


async def take_copy(engine: RelayEngine, folder: Path) -> FollowedCopy:
    """Take a copy as a follower does."""
    private_dir(folder)
    with await engine.followers.open_copy(FOLLOWER) as file:
        return await replace_copy(folder, _pieces(file))


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := file.read(100_000):
        yield piece


async def catch_up(engine: RelayEngine, copy: FollowedCopy) -> int:
    """Apply everything that the leader has recorded; return how many groups that were."""
    groups = 0
    while True:
        page = await engine.followers.read(FOLLOWER, copy.position, copy.head, 0)
        if page.groups:
            copy.apply(page.groups)
            groups += len(page.groups)
        if page.is_complete:
            return groups


def tables_of(path: Path) -> dict[str, list[Any]]:
    """Return every row of a store, without what belongs to the recording."""
    db = open_reader(path)
    try:
        names = [name for (name,) in db.execute(_TABLES) if name not in RECORDING_TABLES]
        return {name: sorted(db.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr) for name in names}
    finally:
        db.close()
