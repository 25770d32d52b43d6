"""The client of a daemon, for programs on the same machine.

Each name loads its module at first use; posthouse.lazy says how to add one.
"""

from __future__ import annotations

from posthouse.lazy import attribute_loader

TYPE_CHECKING = False  # see posthouse.lazy
if TYPE_CHECKING:
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

#: Module below posthouse -> the public names that live there.
_HOMES = {
    "client.daemon.async_daemon_client": ("AsyncDaemonClient",),
    "client.daemon.daemon_client": ("DaemonClient",),
    "client.daemon.local_api": (
        "Accepted",
        "Agent",
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
    ),
    "client.daemon.locate": (
        "DaemonAddress",
        "daemon_address",
    ),
}

if not TYPE_CHECKING:  # a type checker that saw this would accept any name
    __getattr__ = attribute_loader(__name__, _HOMES)
