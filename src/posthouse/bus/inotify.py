"""One inotify descriptor for new files in mailboxes and for the journal's tick file, opened when the first is watched.

An event only says which directory has changed: after lost events (overflow) every mailbox is rescanned, and
housekeeping rescans as a safety net. Events are parsed here, because a busy bus reads thousands of them per second
and asyncinotify makes an object with a path of each.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from contextvars import Context
from pathlib import Path

from asyncinotify import Inotify, Mask, Watch

from posthouse.bus.watching import MailboxListener

_HEADER = struct.Struct("iIII")
_OVERFLOW = int(Mask.Q_OVERFLOW)
_IGNORED = int(Mask.IGNORED)
_READ_BYTES = 64 * 1024
_COALESCE_S = 0.004  # how long the event of another process's message may wait while only own messages arrive


class InotifyWatcher:
    """The one inotify descriptor of an open Bus."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        #: None while nothing is watched: a user may have 128 of them, and a bus that only publishes needs none
        self._inotify: Inotify | None = None
        self._fd = -1
        #: by watch descriptor
        self._listeners: dict[int, MailboxListener] = {}
        self._watches: dict[MailboxListener, Watch] = {}
        self._tick: tuple[Watch, Callable[[], None]] | None = None
        self._context = context
        self._pause: asyncio.TimerHandle | None = None

    def add_mailbox(self, path: Path, listener: MailboxListener) -> None:
        """Notify `listener` of every file that appears in the directory."""
        watch = self._opened().add_watch(path, Mask.MOVED_TO | Mask.CLOSE_WRITE | Mask.ONLYDIR | Mask.DONT_FOLLOW)
        self._listeners[watch.wd] = listener
        self._watches[listener] = watch

    def remove_mailbox(self, listener: MailboxListener) -> None:
        """Stop notifying a listener; the directory may be gone."""
        watch = self._watches.pop(listener, None)
        if watch is None or self._inotify is None:
            return
        self._listeners.pop(watch.wd, None)
        try:
            self._inotify.rm_watch(watch)
        except OSError:  # the kernel removed it with the directory
            return

    def watch_tick(self, path: Path, on_tick: Callable[[], None]) -> None:
        """Call `on_tick` whenever a process has committed."""
        if self._tick is None:
            self._tick = (self._opened().add_watch(path, Mask.ATTRIB), on_tick)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._inotify is not None:
            self._loop.remove_reader(self._fd)
            self._inotify.close()

    def _opened(self) -> Inotify:
        if self._inotify is None:
            self._inotify = Inotify()
            self._fd = self._inotify.fd
            os.set_blocking(self._fd, False)
            self._context.copy().run(self._resume)
        return self._inotify

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._fd, self._read)

    def _pause_reading(self) -> None:
        """Let events accumulate for a moment instead of waking up for each own message."""
        self._loop.remove_reader(self._fd)
        self._pause = self._loop.call_later(_COALESCE_S, self._resume, context=self._context)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        position, unpack = 0, _HEADER.unpack_from
        tick = -1 if self._tick is None else self._tick[0].wd
        is_tick = has_news = False
        while position < len(data):
            wd, mask, _cookie, length = unpack(data, position)
            position += _HEADER.size + length
            if mask & _OVERFLOW:
                self._rescan_all()
                has_news = True
            elif wd == tick:
                is_tick = has_news = True
            elif length and not mask & _IGNORED and (listener := self._listeners.get(wd)) is not None:
                has_news |= listener.on_file(os.fsdecode(data[position - length : position].rstrip(b"\0")))
        if is_tick and self._tick is not None:
            self._tick[1]()
        if not has_news:
            self._pause_reading()

    def _rescan_all(self) -> None:
        for listener in list(self._listeners.values()):
            listener.rescan()
        if self._tick is not None:
            self._tick[1]()
