"""The client of a daemon, for programs on its machine."""

from posthouse.client.daemon.async_client import AsyncDaemonClient
from posthouse.client.daemon.client import DaemonClient
from posthouse.client.daemon.place import DaemonPlace, daemon_place
from posthouse.client.daemon.values import (
    Accepted,
    DaemonEvent,
    DaemonVersion,
    Health,
    InboxItem,
    OutboxChain,
    OutboxRow,
    RequeuedRow,
)

__all__ = [
    "Accepted",
    "AsyncDaemonClient",
    "DaemonClient",
    "DaemonEvent",
    "DaemonPlace",
    "DaemonVersion",
    "Health",
    "InboxItem",
    "OutboxChain",
    "OutboxRow",
    "RequeuedRow",
    "daemon_place",
]
