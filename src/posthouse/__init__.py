"""posthouse: durable messages, budgets and locks for teams of AI agents.

Importing this package imports nothing else: each name loads its module when it is first used (PEP 562). That
keeps SQLite, networking and cryptography out of processes that need a value only; a Spark worker with a second
SQLite library in its process would lose rows. If you add a name: 1. `_HOMES`, 2. `__all__`, sorted, 3. the block
for type checkers.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would double the start-up time of the smallest commands
if TYPE_CHECKING:
    from posthouse.bus.bus import Bus
    from posthouse.bus.options import Retention
    from posthouse.bus.results import Endpoint, Letter, PublishRefused, PublishResult, Reason, Rejection, RequestTimeout
    from posthouse.client.client import Client
    from posthouse.client.daemon.daemon_client import DaemonClient
    from posthouse.fence import Fence, FenceTable
    from posthouse.keys.identity import NodeKey
    from posthouse.model.access_rules import AccessRule, Action
    from posthouse.model.budget import Budget, GivenBudget
    from posthouse.model.envelope import (
        Attachment,
        ChannelType,
        DeadLetter,
        Envelope,
        Performative,
        ResponseContext,
        Signal,
        SignalType,
        StandardPayload,
        Usage,
    )
    from posthouse.model.errors import Fatal, PosthouseError, Refused, Transient
    from posthouse.model.event import Event
    from posthouse.model.reliability import Backpressure, CircuitBreaker, DeadLetterLimits, RateLimit, Reliability
    from posthouse.model.subjects import matches, validate_subject
    from posthouse.version import __version__

__all__ = [
    "AccessRule",
    "Action",
    "Attachment",
    "Backpressure",
    "Budget",
    "Bus",
    "ChannelType",
    "CircuitBreaker",
    "Client",
    "DaemonClient",
    "DeadLetter",
    "DeadLetterLimits",
    "Endpoint",
    "Envelope",
    "Event",
    "Fatal",
    "Fence",
    "FenceTable",
    "GivenBudget",
    "Letter",
    "NodeKey",
    "Performative",
    "PosthouseError",
    "PublishRefused",
    "PublishResult",
    "RateLimit",
    "Reason",
    "Refused",
    "Rejection",
    "Reliability",
    "RequestTimeout",
    "ResponseContext",
    "Retention",
    "Signal",
    "SignalType",
    "StandardPayload",
    "Transient",
    "Usage",
    "__version__",
    "matches",
    "validate_subject",
]

#: Module below posthouse -> the public names that live there.
_HOMES = {
    "bus.bus": ("Bus",),
    "bus.options": ("Retention",),
    "bus.results": (
        "Endpoint",
        "Letter",
        "PublishRefused",
        "PublishResult",
        "Reason",
        "Rejection",
        "RequestTimeout",
    ),
    "client.client": ("Client",),
    "client.daemon.daemon_client": ("DaemonClient",),
    "fence": ("Fence", "FenceTable"),
    "keys.identity": ("NodeKey",),
    "model.access_rules": ("AccessRule", "Action"),
    "model.budget": ("Budget", "GivenBudget"),
    "model.envelope": (
        "Attachment",
        "ChannelType",
        "DeadLetter",
        "Envelope",
        "Performative",
        "ResponseContext",
        "Signal",
        "SignalType",
        "StandardPayload",
        "Usage",
    ),
    "model.errors": ("Fatal", "PosthouseError", "Refused", "Transient"),
    "model.event": ("Event",),
    "model.reliability": ("Backpressure", "CircuitBreaker", "DeadLetterLimits", "RateLimit", "Reliability"),
    "model.subjects": ("matches", "validate_subject"),
    "version": ("__version__",),
}
_HOME_OF = {name: f"posthouse.{home}" for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a checker that saw it would accept any name

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'posthouse' has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
