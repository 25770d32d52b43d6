"""Locks of the relay for reserved paths of a repository, so that agents on other hosts see them too.

The name of a lock is `repo/<root commit>/<path in the repository>`: clones on different hosts share the root commit,
whatever their directories are called. The daemon acquires the locks before a reservation is granted and renews them
while it holds. If the relay was unreachable for longer than a lease, the lock is acquired again as soon as it answers;
until then only this host sees the reservation.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from posthouse.client.locks.lock_calls import LockCalls
from posthouse.daemon.agents.reservations import Reservation
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError, Refused, error

log = get_log(__name__)
LEASE_MS = 120_000
RENEW_S = 30.0
_GIT_S = 10.0  # listing the roots walks the whole history


def lock_name(path: str) -> str:
    """Return the name of the relay's lock for a real path; raises reservation_repo_unknown."""
    given = Path(path)
    folder = next(each for each in (given, *given.parents) if each.is_dir())
    top = _git(folder, path, "rev-parse", "--show-toplevel")
    roots = _git(folder, path, "rev-list", "--max-parents=0", "HEAD").split()
    inside = given.relative_to(Path(top).resolve()).as_posix()
    return f"repo/{min(roots)}" if inside == "." else f"repo/{min(roots)}/{inside}"


def _git(folder: Path, path: str, *words: str) -> str:
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_GIT_S, check=True
        )
    except subprocess.CalledProcessError as failure:
        reason = failure.stderr.strip().splitlines()
        raise error("reservation_repo_unknown", path=path, reason=reason[-1] if reason else "git failed") from failure
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise error("reservation_repo_unknown", path=path, reason=str(failure)) from failure
    return ended.stdout.strip()


class RepoLocks:
    """The locks that this daemon holds for reservations."""

    def __init__(self, find_locks: Callable[[], LockCalls], active: Callable[[], Sequence[Reservation]]) -> None:
        """Start with no locks; `find_locks` raises while there is no relay, `active` returns active reservations."""
        self._find_locks = find_locks
        self._active = active
        #: (agent, name of the lock) -> token
        self._tokens: dict[tuple[str, str], int] = {}
        #: the shared ones of them
        self._shared: set[tuple[str, str]] = set()

    async def acquire(self, agent: str, names: Sequence[str], *, is_shared: bool) -> None:
        """Acquire locks for an agent, all or none; raises the relay's refusal."""
        locks = self._find_locks()
        fresh: list[str] = []
        try:
            for name in names:
                key = (agent, name)
                if key in self._tokens and is_shared != (key in self._shared):
                    await locks.release(name, self._tokens.pop(key))  # `renew` takes it back if the rest is refused
                if key not in self._tokens:
                    await self._acquire_one(locks, agent, name, is_shared=is_shared)
                    fresh.append(name)
        except BaseException:
            self._give_back((agent, name) for name in fresh)
            raise

    def release_unused(self, _ended: Sequence[Reservation] = ()) -> None:
        """Release the locks that no reservation needs any longer."""
        needed = {(row.agent, row.lock) for row in self._active() if row.lock is not None}
        self._give_back([key for key in self._tokens if key not in needed])

    async def run(self) -> None:
        """Renew the locks until cancelled."""
        while True:
            await self.renew()
            await asyncio.sleep(RENEW_S)

    async def renew(self) -> None:
        """Renew every lock once, and acquire lost ones again."""
        for row in self._active():
            if row.lock is None:
                continue
            try:
                await self._renew_one(row, row.lock)
            except PosthouseError as failure:  # the relay is unreachable, or the lock went to another host meanwhile
                log.warning("reservation_not_locked", lock=row.lock, code=failure.code, reason=str(failure))

    async def _renew_one(self, row: Reservation, name: str) -> None:
        locks, key = self._find_locks(), (row.agent, name)
        token = self._tokens.get(key)
        if token is not None:
            try:
                await locks.renew(name, token, lease_ms=LEASE_MS, session=_session(row.agent))
                return
            except Refused:  # the lease has ended
                self._tokens.pop(key, None)
        await self._acquire_one(locks, row.agent, name, is_shared=bool(row.is_shared))

    async def _acquire_one(self, locks: LockCalls, agent: str, name: str, *, is_shared: bool) -> None:
        grant = await locks.acquire(
            name,
            lease_ms=LEASE_MS,
            session=_session(agent),
            mode="shared" if is_shared else "exclusive",
            tree=True,
        )
        self._tokens[agent, name] = grant.token
        if is_shared:
            self._shared.add((agent, name))
        else:
            self._shared.discard((agent, name))

    def _give_back(self, keys: Iterable[tuple[str, str]]) -> None:
        for agent, name in list(keys):
            token = self._tokens.pop((agent, name), None)
            if token is not None:
                try:
                    self._find_locks().give_back(name, token)
                except PosthouseError:  # without a relay the lease ends by itself
                    continue


def _session(agent: str) -> str:
    return f"reservations/{agent}"
