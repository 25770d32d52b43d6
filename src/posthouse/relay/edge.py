"""What every handler at the edge of a relay works with: the core, who may ask, who listens, and the bounds.

One object per relay process, made by the server and handed to each request and stream; it holds no rules itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from posthouse.keys import NodeKey
from posthouse.model.clock import Clock
from posthouse.relay.auth import Challenges, Tokens
from posthouse.relay.limits import EdgeLimits
from posthouse.relay.live import Live
from posthouse.relay.metrics import Meters

if TYPE_CHECKING:
    from posthouse.relay.core import Core
    from posthouse.relay.pinch.service import Pinch
    from posthouse.relay.stream.connection import Connection


@dataclass(slots=True)
class Edge:
    """The parts of a running relay that requests and streams share."""

    core: Core
    key: NodeKey
    clock: Clock
    limits: EdgeLimits
    live: Live
    challenges: Challenges
    tokens: Tokens
    meters: Meters
    connections: dict[Connection, None] = field(default_factory=dict)
    #: None when the relay does not speak Pinch
    pinch: Pinch | None = None
    #: HOST:PORT under which others reach this relay; invites carry it
    address: str = ""
    is_stopping: bool = False

    @property
    def relay(self) -> str:
        """The relay's node id."""
        return self.key.node
