"""The lock of a relay around a run, where a relay is at hand: one run at a time, on whatever host.

The lock is held by a thread with a loop of its own, which renews it while Spark works. It keeps runs from doing the
same work twice; what keeps rows from being there twice are the lake's own commits, which need no lock.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.files import create_atomic, private_dir, read_private
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client import Client

_ID_NAME = "lake.id"
_LEASE_S = 30.0
_WAIT_S = 1.0  # another run may be ending just now


@contextmanager
def with_relay_lock(lake: Path, client: Client | None) -> Iterator[None]:
    """Hold the lake's lock at a relay, or do nothing without one; lake_busy while another run holds it."""
    if client is None:
        yield
        return
    holder = _Holder(client, f"lake/{lake_id(lake)}", lake)
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


class _Holder(threading.Thread):
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
