"""Settings of a daemon: its directory, its meshes with their relays, the limits of its local API.

Plain frozen values. Nothing here reads a file or the environment; the command line builds them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from posthouse.client import ClientOptions
from posthouse.mcp.server import DEFAULT_WAIT_MAX_S
from posthouse.model.clock import Clock, system_clock
from posthouse.model.limits import GB, JOURNAL_KEEP_DAYS, JOURNAL_MAX_BYTES, MIB
from posthouse.model.rate import Rate
from posthouse.model.user_hook import UserHook


@dataclass(frozen=True, slots=True)
class Retention:
    """Which records of a journal may be pruned."""

    #: None: by their size alone
    keep_days: float | None = JOURNAL_KEEP_DAYS
    max_bytes: int = JOURNAL_MAX_BYTES
    #: if set, only records that this lake has committed
    lake: str | None = None


KEEP_DAYS = 30
RETENTION = Retention()
TCP_RATE = Rate(per_s=100, burst=1_000)


class ClonePolicy(enum.StrEnum):
    """The reaction of a daemon to an identity that was made on another machine."""

    REFUSE = "refuse"
    WARN = "warn"
    ALLOW = "allow"


@dataclass(frozen=True)
class IpcLimits:
    """The limits of the local API."""

    body_bytes: int = MIB
    #: requests that run at once; waiting ones do not count
    requests: int = 64
    #: requests that wait for a message or a lock
    sleepers: int = 1_024
    streams: int = 32
    tcp_rate: Rate = TCP_RATE
    #: time for a body to arrive
    body_s: float = 30.0
    #: between comments on a silent event stream
    comment_s: float = 15.0
    #: events that a stream may lag behind before it is closed; its client resumes from the inbox
    stream_events: int = 1_000


@dataclass(frozen=True)
class MeshSettings:
    """One mesh of a daemon, and the relay that carries it."""

    mesh: str
    relay: str
    is_ephemeral: bool = False
    clone_policy: ClonePolicy = ClonePolicy.REFUSE
    #: None: the default, bounded by how long the relay remembers ids
    outbox_max_age_h: int | None = None
    outbox_max_bytes: int = 5 * GB
    inbox_keep_days: int = KEEP_DAYS
    retention: Retention = RETENTION
    #: the host's bus; None: no bridge
    bus_dir: Path | None = None
    #: file of pinned relay keys; None: the file of the user
    pins: Path | None = None
    client: ClientOptions = field(default_factory=ClientOptions)
    clock: Clock = field(default_factory=system_clock)


@dataclass(frozen=True)
class DaemonSettings:
    """One daemon: the process of a home, with every mesh of it."""

    directory: Path
    meshes: tuple[MeshSettings, ...]
    #: lifetime of an ephemeral daemon; None: until it is stopped
    ttl_s: float | None = None
    #: auto: off in containers
    tcp: Literal["auto", "on", "off"] = "auto"
    #: on loopback; 0: a free one
    port: int = 0
    #: longest wait of one MCP tool call
    tool_wait_max_s: int = DEFAULT_WAIT_MAX_S
    #: messages of coding agents report the usage in their program's transcript
    reports_usage: bool = False
    #: collector of traces; None: messages are not traced
    otlp_url: str | None = None
    #: share of the messages that begin a trace
    trace_ratio: float = 1.0
    #: commands of the user for events
    hooks: tuple[UserHook, ...] = ()
    limits: IpcLimits = IpcLimits()
    clock: Clock = field(default_factory=system_clock)
    #: returns the settings of a mesh that is added while the daemon runs, given its relay if the caller names one
    load_mesh: Callable[[str, str | None], MeshSettings] | None = None
    #: returns the mesh that the user has chosen for requests that name none
    chosen_mesh: Callable[[], str | None] = lambda: None

    @property
    def is_ephemeral(self) -> bool:
        """True if the identities of this daemon end with its process."""
        return any(mesh.is_ephemeral for mesh in self.meshes)
