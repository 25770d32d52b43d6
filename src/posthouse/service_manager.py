"""Notify the service manager that started this process: ready, stopping, alive.

systemd passes a datagram socket in NOTIFY_SOCKET to a unit of type notify, and the time of its watchdog in
WATCHDOG_USEC: it restarts a process that misses the watchdog. Without these variables every call does nothing, so a
server calls them wherever it runs. A failed notification is logged, never raised: the server works without it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

from posthouse.log import get_log

log = get_log(__name__)
READY = "READY=1"
STOPPING = "STOPPING=1"
_ALIVE = "WATCHDOG=1"
_PER_INTERVAL = 3  # notifications per watchdog interval: one may be late on a loaded machine


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send one state to the service manager, if there is one."""
    address = environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError as failure:
        log.warning("service_manager_unreachable", state=state, reason=failure.strerror or str(failure))


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the seconds between two notifications that the watchdog expects from this process, or None."""
    interval, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not interval.isdigit() or (process and process != str(os.getpid())):
        return None
    return int(interval) / 1e6 / _PER_INTERVAL or None


async def feed_watchdog(is_healthy: Callable[[], bool]) -> None:
    """Notify the watchdog for as long as `is_healthy`; return at once if there is none."""
    interval_s = watchdog_s()
    while interval_s is not None:
        if is_healthy():
            notify(_ALIVE)
        await asyncio.sleep(interval_s)
