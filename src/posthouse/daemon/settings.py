"""Settings of one daemon: its directory, relay and mesh, the bounds of its local interface, and what it keeps for how
long.

Plain frozen values. Nothing here reads a file or the environment; the command line builds them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from posthouse.client import ClientOptions
from posthouse.model.clock import Clock, system_clock
from posthouse.model.limits import GB, JOURNAL_KEEP_DAYS, JOURNAL_MAX_BYTES, MIB
from posthouse.model.rate import Rate


@dataclass(frozen=True, slots=True)
class Retention:
    """What of a journal may go."""

    keep_days: float = JOURNAL_KEEP_DAYS
    max_bytes: int = JOURNAL_MAX_BYTES
    #: set: only what the lake has committed
    lake: str | None = None


KEEP_DAYS = 30
RETENTION = Retention()
TCP_RATE = Rate(per_s=100, burst=1_000)


class ClonePolicy(enum.StrEnum):
    """What an identity does on a machine it was not made on."""

    REFUSE = "refuse"
    WARN = "warn"
    ALLOW = "allow"


@dataclass(frozen=True)
class IpcLimits:
    """The bounds of the local interface."""

    body_bytes: int = MIB
    #: requests being answered; one that sleeps for mail does not count
    requests: int = 64
    #: requests that sleep for mail
    sleepers: int = 1_024
    streams: int = 32
    tcp_rate: Rate = TCP_RATE
    #: for a body to arrive
    body_s: float = 30.0
    #: between comments on a silent event stream
    comment_s: float = 15.0
    #: events a stream may lag behind before it is ended; it resumes from the inbox
    stream_events: int = 1_000


@dataclass(frozen=True)
class DaemonSettings:
    """One daemon: a user, a mesh, a relay."""

    directory: Path
    relay: str
    mesh: str
    is_ephemeral: bool = False
    #: how long an ephemeral daemon lives; None: until it is ended
    ttl_s: float | None = None
    #: auto: off in containers
    tcp: Literal["auto", "on", "off"] = "auto"
    clone_policy: ClonePolicy = ClonePolicy.REFUSE
    #: None: the default, bounded by what the relay remembers
    outbox_max_age_h: int | None = None
    outbox_max_bytes: int = 5 * GB
    inbox_keep_days: int = KEEP_DAYS
    retention: Retention = RETENTION
    #: the host's bus; None: no bridge
    bus_dir: Path | None = None
    #: file of pins; None: those of the user
    pins: Path | None = None
    client: ClientOptions = field(default_factory=ClientOptions)
    limits: IpcLimits = IpcLimits()
    clock: Clock = field(default_factory=system_clock)
