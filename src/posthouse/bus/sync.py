"""Blocking calls for code without an event loop: plain programs, threads, and handlers that are plain functions.

Every call runs on the event loop of the bus, in the context of the calling thread: what a plain handler publishes
inherits the budget of its message. In an async program that is the loop that opened the bus. A plain program opens the
bus here, on a background thread with its own loop. A call on the loop's own thread is refused, because it would block
the loop and never return.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from posthouse.model.errors import error

P = ParamSpec("P")
R = TypeVar("R")
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class AsyncBus(Protocol):
    """The Bus behind the blocking calls."""

    path: Path

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that opened it; None while it is closed."""

    async def open(self) -> None:
        """Open the bus on the running loop."""

    async def close(self) -> None:
        """Close it."""

    async def serve(self) -> None:
        """Wait until the bus is closed."""


class SyncCalls:
    """Opening, closing and calling an asynchronous bus from plain code; use it as a context manager."""

    def __init__(self, bus: AsyncBus) -> None:
        self.bus = bus
        self._thread: threading.Thread | None = None
        self._on_stop: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Open the bus on a background thread; do nothing if it is open already."""
        if self.bus.loop is not None:
            return
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run_bus(opened),), name="bus", daemon=True)
        self._thread.start()
        opened.result()

    def close(self) -> None:
        """Close a bus that `open` has opened, and end its thread; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None and self._on_stop is not None:
            self._on_stop()
            thread.join()

    async def _run_bus(self, opened: Future[None]) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self.bus.open()
        except BaseException as failure:  # noqa: BLE001 - `open` raises it in its own thread
            opened.set_exception(failure)
            return
        self._on_stop = lambda: loop.call_soon_threadsafe(stop.set)
        opened.set_result(None)
        await stop.wait()
        await self.bus.close()

    def run(self, call: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an asynchronous call on the loop of the bus and return its result."""
        future = self._start(call, *args, **kwargs)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def run_until_signal(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a call until it returns or this process gets SIGINT or SIGTERM, which only its main thread can see."""
        future = self._start(call)
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in ENDING_SIGNALS if is_main}
        for number in before:
            signal.signal(number, lambda *_: future.cancel())
        try:
            future.result()
        except CancelledError:
            return
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self, call: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        loop = self.bus.loop
        if loop is None:
            raise error("bus_closed", path=str(self.bus.path))
        if asyncio._get_running_loop() is loop:
            raise error("bus_sync_in_loop")
        return asyncio.run_coroutine_threadsafe(call(*args, **kwargs), loop)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncCalls, P], R]:
    """Return the blocking form of a method of the bus."""

    @wraps(method)
    def call(self: SyncCalls, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.run(partial(method, self.bus), *args, **kwargs)

    return call


def blocking_until_removed(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Callable[[], Coroutine[Any, Any, None]]]],
) -> Callable[Concatenate[SyncCalls, P], Callable[[], None]]:
    """Return the blocking form of a method that adds a handler; a call of its result removes the handler."""

    @wraps(method)
    def call(self: SyncCalls, /, *args: P.args, **kwargs: P.kwargs) -> Callable[[], None]:
        remove = self.run(partial(method, self.bus), *args, **kwargs)
        return lambda: self.run(remove)

    return call
