"""The client of a daemon, for programs on the same machine."""

from posthouse.client.daemon.async_daemon_client import AsyncDaemonClient
from posthouse.client.daemon.daemon_client import DaemonClient
from posthouse.client.daemon.local_api import (
    Accepted,
    Agent,
    DaemonEvent,
    DaemonVersion,
    Health,
    InboxItem,
    OutboxChain,
    OutboxRow,
    Page,
    RequeuedRow,
    Reservation,
    Thread,
)
from posthouse.client.daemon.locate import DaemonAddress, daemon_address

__all__ = [
    "Accepted",
    "Agent",
    "AsyncDaemonClient",
    "DaemonAddress",
    "DaemonClient",
    "DaemonEvent",
    "DaemonVersion",
    "Health",
    "InboxItem",
    "OutboxChain",
    "OutboxRow",
    "Page",
    "RequeuedRow",
    "Reservation",
    "Thread",
    "daemon_address",
]
