"""posthouse: durable messages, budgets and locks for teams of AI agents.

Each name loads its module at first use; posthouse.lazy says how to add one. That keeps SQLite, networking and
cryptography out of processes that need a value only; a Spark worker with a second SQLite library in its process would
lose rows.
"""

from __future__ import annotations

from posthouse.lazy import attribute_loader

TYPE_CHECKING = False  # see posthouse.lazy
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

if not TYPE_CHECKING:  # a checker that saw it would accept any name
    __getattr__ = attribute_loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
