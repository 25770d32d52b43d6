"""Durability "power": files and directory names are synced before a publish is answered, many per sync.

One thread takes all drafts that gathered while it synced the last ones, writes and syncs their files, renames them,
syncs each directory once, and hands them back to the loop. Order is kept, because there is one thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING

from posthouse.bus.draft import Copy, Draft
from posthouse.bus.mailbox import Mailbox
from posthouse.bus.publish import copy_file, finish

if TYPE_CHECKING:
    from posthouse.bus.session import Session

_Outcome = tuple[Draft, list[tuple[Copy, OSError | None]]]


class Syncer:
    """The syncing thread of one open Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._queue: queue.SimpleQueue[Draft | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="bus syncer", daemon=True)
        self._thread.start()

    def store(self, draft: Draft) -> None:
        """Write and sync the files of a draft, then answer it."""
        self._queue.put(draft)

    async def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    def _serve(self) -> None:
        is_open = True
        while is_open:
            drafts = [self._queue.get()]
            while not self._queue.empty():
                drafts.append(self._queue.get())
            is_open = None not in drafts
            outcomes = self._sync([draft for draft in drafts if draft is not None])
            self._session.loop.call_soon_threadsafe(self._tell, outcomes, context=self._session.context)
        self._session.loop.call_soon_threadsafe(self._ended.set)

    def _sync(self, drafts: list[Draft]) -> list[_Outcome]:
        opened: dict[str, Mailbox] = {}
        touched: set[tuple[str, str]] = set()
        outcomes: list[_Outcome] = []
        for draft in drafts:
            results: list[tuple[Copy, OSError | None]] = []
            outcomes.append((draft, results))
            for copy in (*draft.copies, *draft.letters):
                results.append((copy, self._write(copy, opened, touched)))
        failures = {place: _sync_directory(opened[place[0]], place[1]) for place in touched}
        for mailbox in opened.values():
            mailbox.close()
        return [
            (draft, [(copy, failure or failures.get((copy.hash, _box(copy)))) for copy, failure in results])
            for draft, results in outcomes
        ]

    def _write(
        self,
        copy: Copy,
        opened: dict[str, Mailbox],
        touched: set[tuple[str, str]],
    ) -> OSError | None:
        try:
            mailbox = opened.get(copy.hash) or opened.setdefault(copy.hash, self._open(copy))
            data, box = copy_file(copy)
            mailbox.write(copy.id, data, sync=True)
            mailbox.move(f"tmp/{copy.id}", f"{box}/{copy.id}")
        except OSError as failure:
            return failure
        touched.add((copy.hash, box))
        return None

    def _open(self, copy: Copy) -> Mailbox:
        """Open the mailbox for this thread: the loop may close its own descriptor at any time."""
        directory = self._session.directory
        if copy.endpoint is None:
            return Mailbox(directory.unrouted.path, ("tmp", "failed"))
        return Mailbox(directory.path_of(copy.hash))

    def _tell(self, outcomes: list[_Outcome]) -> None:
        for draft, results in outcomes:
            finish(self._session, draft, results)


def _box(copy: Copy) -> str:
    return "new" if copy.reason is None else "failed"


def _sync_directory(mailbox: Mailbox, box: str) -> OSError | None:
    try:
        mailbox.sync(box)
    except OSError as failure:
        return failure
    return None
