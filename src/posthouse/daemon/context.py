"""The parts of a running daemon that local requests use, and the call that a local route gets.

The daemon assembles one context after it has opened its stores; routes reach everything through it and never hold
the daemon itself. A waiting request always ends: when its event is set, when its time is over, or when the daemon
stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from posthouse.daemon.event_hub import EventHub
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.metrics import Meters
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.roster import Roster
from posthouse.daemon.send import Sending
from posthouse.daemon.settings import DaemonSettings
from posthouse.daemon.uplink import Uplink
from posthouse.http.call import Call, WaitLimit
from posthouse.keys import NodeKey
from posthouse.model.clock import Clock


@dataclass(slots=True)
class DaemonContext:
    """What a request may use of its daemon."""

    settings: DaemonSettings
    clock: Clock
    key: NodeKey
    outbox: Outbox
    inbox: Inbox
    roster: Roster
    uplink: Uplink
    sending: Sending
    events: EventHub
    meters: Meters
    #: boot time at which the daemon started
    started_ns: int
    is_stopping: bool = False
    #: requests that wait for a message or a lock
    waiters: WaitLimit = field(init=False)
    #: event streams
    streams: WaitLimit = field(init=False)
    _waiting: set[asyncio.Event] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.settings.limits
        self.waiters = WaitLimit(limits.sleepers, "daemon_busy")
        self.streams = WaitLimit(limits.streams, "too_many_streams")

    async def wait_for(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set, the time is over, or the daemon stops."""
        if self.is_stopping:
            return
        self._waiting.add(event)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            self._waiting.discard(event)

    def stop(self) -> None:
        """Refuse new requests and wake the waiting ones."""
        self.is_stopping = True
        for event in self._waiting:
            event.set()


@dataclass(slots=True)
class LocalCall(Call[DaemonContext]):
    """A request to the daemon's local API."""

    @property
    def id(self) -> str:
        """The id in the path of the route."""
        return self.params["id"]
