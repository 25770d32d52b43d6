"""Running a daemon as a process: the event loop, the signals that end it, its log, and the word that it is ready."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping

import uvloop

from posthouse.cli.daemon.log_file import LogFile, log_to
from posthouse.collector import settle
from posthouse.daemon.daemon import Daemon
from posthouse.daemon.settings import DaemonSettings
from posthouse.files import private_dir
from posthouse.model.settings import Resolved


def run_daemon(settings: DaemonSettings, values: Mapping[str, Resolved], on_ready: Callable[[Daemon], None]) -> None:
    """Run a daemon until SIGTERM, SIGINT or its own end; raises what ended it. `on_ready`: its socket answers."""
    log = LogFile(private_dir(settings.directory) / "daemon.log")
    log_to(log, values)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, on_ready))
    finally:
        log.close()


async def _serve(settings: DaemonSettings, on_ready: Callable[[Daemon], None]) -> None:
    daemon = Daemon(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.end)
    await daemon.start()
    try:
        settle()
        on_ready(daemon)
        await daemon.wait()
    finally:
        await daemon.stop()
