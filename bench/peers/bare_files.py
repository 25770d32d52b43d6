"""The floors: the writes and syncs that no contestant can avoid, without a server, a protocol or a format.

A message is one append and one fdatasync; 64 at once are one append and one fdatasync; a lock is two of the first. On
the bus, which answers before a sync by default, a message is the file operations of a Maildir.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.bus_throughput import Floor
from bench.peers.works import BODY, BUS_BURST, FLOOR, Configuration, Contestant, Operation, Work
from bench.scales import IN_FLIGHT, SUBJECT
from posthouse.bus.data_directory import endpoint_hash

_ONE = BODY.encode()
_MANY = _ONE * IN_FLIGHT
_MAILDIR = ("tmp", "failed", "cur")


class BareFiles(Contestant):
    """One file that only grows, and one Maildir."""

    name = FLOOR

    async def start(self, folder: Path) -> Configuration:
        self._file = os.open(folder / "appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._stack.callback(os.close, self._file)
        for name in _MAILDIR:
            (folder / "mailboxes" / endpoint_hash(SUBJECT) / name).mkdir(parents=True)
        self._maildir = Floor(folder, SUBJECT, len(_ONE))
        durability = "fdatasync after every append; on the bus no sync, as the bus by default"
        return Configuration(platform.release(), durability, "none", {})

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {
            Work.PUBLISH: [Operation(self.name, self._append_one)],
            Work.PUBLISH_64: [Operation(self.name, self._append_many)],
            Work.LOCK: [Operation(self.name, self._append_twice)],
            Work.BUS: [Operation(self.name, self._store_burst)],
            Work.BUS_64: [Operation(self.name, self._store_many)],
        }

    async def _append_one(self) -> None:
        self._append(_ONE)

    async def _append_many(self) -> None:
        self._append(_MANY)

    async def _append_twice(self) -> None:
        self._append(_ONE)
        self._append(_ONE)

    def _append(self, data: bytes) -> None:
        os.write(self._file, data)
        os.fdatasync(self._file)

    async def _store_burst(self) -> None:
        self._maildir.store_messages(BUS_BURST)

    async def _store_many(self) -> None:
        self._maildir.store_messages(IN_FLIGHT)
