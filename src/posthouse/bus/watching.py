"""How a bus notices files that other processes write: the interface, and a watcher for systems without inotify.

A watcher only says that something has changed. Housekeeping scans every mailbox as a safety net, so a lost or late
report delays a message and loses none. On Linux `posthouse.bus.inotify` reports at once; PortableWatcher uses the
watchfiles library, which uses the file events of macOS and reports within a few hundredths of a second.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Protocol

from posthouse.log import get_log

log = get_log(__name__)
_STEP_MS = 20  # how often the library checks for changes, and how long it waits for more of them
_MOST_MS = 100  # the longest that a stream of changes is collected
_IDLE_MS = 1_000  # after a second without changes everything is scanned: the first changes may have come too early


class MailboxListener(Protocol):
    """The server of one watched mailbox."""

    def on_file(self, name: str) -> bool:
        """Handle a file that appeared; return False if the server knew of it."""

    def rescan(self) -> None:
        """Scan the whole directory, because events were lost."""


class Watcher(Protocol):
    """Watches the mailboxes that an open bus serves, and the file that every commit touches."""

    def add_mailbox(self, path: Path, listener: MailboxListener) -> None:
        """Notify `listener` of every file that appears in the directory."""

    def remove_mailbox(self, listener: MailboxListener) -> None:
        """Stop notifying a listener; the directory may be gone."""

    def watch_tick(self, path: Path, on_tick: Callable[[], None]) -> None:
        """Call `on_tick` whenever a process has committed."""

    def close(self) -> None:
        """Stop watching."""


class PortableWatcher:
    """Watches with its own thread, which starts when the first mailbox or the tick file is watched."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context, mailboxes: Path, tick: Path) -> None:
        """`mailboxes` is the directory that every mailbox is in."""
        self._loop = loop
        self._context = context
        #: without symbolic links, as macOS reports them
        self._paths = (os.path.realpath(mailboxes), os.path.realpath(tick))
        #: by the path of the directory, in the same form
        self._listeners: dict[str, MailboxListener] = {}
        self._on_tick: Callable[[], None] | None = None
        self._tick_path = ""
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    def add_mailbox(self, path: Path, listener: MailboxListener) -> None:
        """Notify `listener` of changes in the directory, by a scan."""
        self._listeners[os.path.realpath(path)] = listener
        self._start()

    def remove_mailbox(self, listener: MailboxListener) -> None:
        """Stop notifying a listener."""
        self._listeners = {path: each for path, each in self._listeners.items() if each is not listener}

    def watch_tick(self, path: Path, on_tick: Callable[[], None]) -> None:
        """Call `on_tick` whenever a process has committed."""
        self._tick_path, self._on_tick = os.path.realpath(path), on_tick
        self._start()

    def close(self) -> None:
        """End the thread and wait for it."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="posthouse-bus-watcher", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        from watchfiles import watch

        try:
            for changes in watch(
                *self._paths,
                watch_filter=self._is_watched,
                step=_STEP_MS,
                debounce=_MOST_MS,
                rust_timeout=_IDLE_MS,
                yield_on_timeout=True,
                stop_event=self._is_closed,
            ):
                self._loop.call_soon_threadsafe(self._report, {path for _, path in changes}, context=self._context)
        except (OSError, RuntimeError) as failure:  # housekeeping continues scanning
            if not self._is_closed.is_set():
                log.error("mailboxes_not_watched", reason=str(failure))

    def _is_watched(self, _change: object, path: str) -> bool:
        return os.path.dirname(path) in self._listeners or path == self._tick_path  # noqa: PTH120 - for each change

    def _report(self, paths: set[str]) -> None:
        """Scan the mailboxes that changed; without a path, all of them."""
        if self._is_closed.is_set():
            return
        changed = {os.path.dirname(path) for path in paths} or set(self._listeners)  # noqa: PTH120 - as above
        for directory in changed:
            if (listener := self._listeners.get(directory)) is not None:
                listener.rescan()
        if self._on_tick is not None and (not paths or self._tick_path in paths):
            self._on_tick()
