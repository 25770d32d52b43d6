"""Running a relay as a process: the event loop, the signals that end it, and the word that it is ready."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import uvloop

from posthouse.collector import settle
from posthouse.relay.server import RelayServer, ServerSettings


def run_relay(settings: ServerSettings, on_ready: Callable[[RelayServer], None]) -> None:
    """Run a relay in the foreground until SIGTERM or SIGINT; `on_ready` is called once it answers."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, on_ready))


async def _serve(settings: ServerSettings, on_ready: Callable[[RelayServer], None]) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = RelayServer(settings)
    await server.start()
    try:
        settle()
        on_ready(server)
        await ended.wait()
    finally:
        await server.stop()
