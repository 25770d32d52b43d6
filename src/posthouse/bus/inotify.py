"""One inotify descriptor for new files in mailboxes and for the journal's tick file.

Events only say where to look: after lost events (overflow) every mailbox is rescanned, and housekeeping polls as a
safety net. Events are parsed here, because a busy bus reads thousands of them per second.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Protocol

from asyncinotify import Inotify, Mask, Watch

_HEADER = struct.Struct("iIII")
_OVERFLOW = int(Mask.Q_OVERFLOW)
_IGNORED = int(Mask.IGNORED)
_READ_BYTES = 64 * 1024
_COALESCE_S = 0.004  # what mail of another process waits at most while this one is busy with its own


class MailboxListener(Protocol):
    """Who wants to hear of files in a directory."""

    def arrived(self, name: str) -> bool:
        """Hear of a file; return whether that was news."""

    def look(self) -> None:
        """Look at the whole directory."""


class Watcher:
    """The one inotify descriptor of an open Bus."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        self._inotify = Inotify()
        os.set_blocking(self._inotify.fd, False)
        self._listeners: dict[int, MailboxListener] = {}
        self._watches: dict[int, Watch] = {}
        self._tick: tuple[Watch, Callable[[], None]] | None = None
        self._context = context
        self._pause: asyncio.TimerHandle | None = None
        context.run(self._listen)

    def add_mailbox(self, path: Path, listener: MailboxListener) -> None:
        """Tell `listener` of every file that appears in the directory."""
        watch = self._inotify.add_watch(path, Mask.MOVED_TO | Mask.CLOSE_WRITE | Mask.ONLYDIR | Mask.DONT_FOLLOW)
        self._listeners[watch.wd] = listener
        self._watches[id(listener)] = watch

    def remove_mailbox(self, listener: MailboxListener) -> None:
        """Stop telling; harmless when the directory is gone."""
        watch = self._watches.pop(id(listener), None)
        if watch is None:
            return
        self._listeners.pop(watch.wd, None)
        try:
            self._inotify.rm_watch(watch)
        except OSError:  # the kernel removed it with the directory
            return

    def watch_tick(self, path: Path, woken: Callable[[], None]) -> None:
        """Call `woken` whenever a process has committed."""
        if self._tick is None:
            self._tick = (self._inotify.add_watch(path, Mask.ATTRIB), woken)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._inotify.fd)
        self._inotify.close()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._inotify.fd, self._read)

    def _rest(self) -> None:
        """Only own messages came: let events gather for a moment instead of waking up for each."""
        self._loop.remove_reader(self._inotify.fd)
        self._pause = self._loop.call_later(_COALESCE_S, self._listen, context=self._context)

    def _read(self) -> None:
        try:
            data = os.read(self._inotify.fd, _READ_BYTES)
        except BlockingIOError:
            return
        position, unpack = 0, _HEADER.unpack_from
        tick = -1 if self._tick is None else self._tick[0].wd
        is_woken = is_news = False
        while position < len(data):
            wd, mask, _cookie, length = unpack(data, position)
            position += _HEADER.size + length
            if mask & _OVERFLOW:
                self._look_everywhere()
                is_news = True
            elif wd == tick:
                is_woken = is_news = True
            elif length and not mask & _IGNORED and (listener := self._listeners.get(wd)) is not None:
                is_news |= listener.arrived(os.fsdecode(data[position - length : position].rstrip(b"\0")))
        if is_woken and self._tick is not None:
            self._tick[1]()
        if not is_news:
            self._rest()

    def _look_everywhere(self) -> None:
        for listener in list(self._listeners.values()):
            listener.look()
        if self._tick is not None:
            self._tick[1]()
