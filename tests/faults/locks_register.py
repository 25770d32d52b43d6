"""A worker that adds one to a register, over and over: python -m tests.faults.locks_register ...

Locks, reads, pauses, writes. The pause does not give way to the event loop, as real work would not, so nothing but the
fence can keep a worker from writing that was stopped in it. It tells what it does on stdout, line by line.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from posthouse import Client, Fence, NodeKey, PosthouseError
from posthouse.client import Pins
from posthouse.client.transport import ClientOptions
from posthouse.files import write_atomic

LEASE_S = 1.0
_PAUSE_S = 0.05


class Register:
    """A number in a file, fenced or not."""

    def __init__(self, folder: Path, is_fenced: bool) -> None:
        self._path = folder / "register"
        self._fence = Fence(folder / "fence") if is_fenced else None

    def add_one(self, token: int) -> None:
        """Read, pause, write; raises fence_stale when a later holder has been here."""
        if self._fence is None:
            write_atomic(self._path, b"%d" % (self._read() + 1))
            return
        self._fence.admit(token)  # before reading: from now on no former holder can write
        value = self._read()
        with self._fence.guard(token):
            write_atomic(self._path, b"%d" % (value + 1))

    def _read(self) -> int:
        value = int(self._path.read_bytes()) if self._path.exists() else 0
        _say("read")
        time.sleep(_PAUSE_S)  # the work that cannot be interrupted
        return value


async def main(url: str, folder: Path, kind: str) -> None:
    register = Register(folder, kind == "fenced")
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with Client(url, NodeKey.generate(), pins=Pins(None), options=ClientOptions(reconnect_most_s=0.2)) as client:
        while not ended.done():
            try:
                async with client.lock("register", lease_s=LEASE_S) as held:
                    register.add_one(held.token)
                    _say("added")
            except PosthouseError as refusal:
                _say(f"refused {refusal.code}")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the experiment reads it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
