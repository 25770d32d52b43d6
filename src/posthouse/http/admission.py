"""Which connections a server keeps: strangers make room for newer strangers, members are never displaced.

A connection is a stranger until a request or a login on it has proved the key of a member. Strangers are bounded per
address and in all. A new connection always gets in: where there is no room, the oldest stranger of the same bound
goes, so a flood of silent connections stops neither a login nor a health check. Members are bounded too; with no room
for another one the login is refused. Counting only; the server closes what `enter` returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from posthouse.model.errors import PosthouseError, error

ConnectionT = TypeVar("ConnectionT", bound=Hashable)
RESERVE = 64  # strangers that have room even if members use all connections: for health checks


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Bounds of connections; None: not limited."""

    connections: int | None = None
    members_per_address: int | None = None
    strangers_per_address: int | None = None


NO_LIMITS = AdmissionLimits()


class Admission(Generic[ConnectionT]):
    """The open connections of one server, by address."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        #: strangers with their address, oldest first; None: not counted per address
        self._strangers: dict[ConnectionT, str | None] = {}
        self._members: dict[ConnectionT, str | None] = {}
        self._strangers_at: dict[str, dict[ConnectionT, None]] = {}
        self._members_at: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._members)

    @property
    def strangers(self) -> int:
        """How many connections have not proved the key of a member."""
        return len(self._strangers)

    def enter(self, connection: ConnectionT, address: str | None) -> list[ConnectionT]:
        """Add a stranger; return the strangers that have to go for it. A known connection changes its address."""
        self.leave(connection)
        gone: list[ConnectionT] = []
        limits = self._limits
        if address is not None:
            neighbours = self._strangers_at.setdefault(address, {})
            if limits.strangers_per_address is not None and len(neighbours) >= limits.strangers_per_address:
                gone.append(next(iter(neighbours)))
        if not gone and limits.connections is not None:
            room = max(RESERVE, limits.connections - len(self._members))
            if len(self._strangers) >= room:
                gone.append(next(iter(self._strangers)))
        for each in gone:
            self.leave(each)
        self._strangers[connection] = address
        if address is not None:
            self._strangers_at.setdefault(address, {})[connection] = None
        return gone

    def promote(self, connection: ConnectionT) -> PosthouseError | None:
        """Make a stranger a member, or return why there is no room for it."""
        if connection not in self._strangers:
            return None  # a member already, or gone
        address, limits = self._strangers[connection], self._limits
        if limits.connections is not None and len(self._members) >= limits.connections:
            return error("connections_exhausted", limit=limits.connections)
        if address is not None:
            most = limits.members_per_address
            if most is not None and self._members_at[address] >= most:
                return error("connections_exhausted", limit=most)
            self._members_at[address] += 1
        self._drop_stranger(connection)
        self._members[connection] = address
        return None

    def leave(self, connection: ConnectionT) -> None:
        """Remove a connection, if it is there."""
        if connection in self._strangers:
            self._drop_stranger(connection)
        elif connection in self._members:
            address = self._members.pop(connection)
            if address is not None:
                self._members_at[address] -= 1
                if not self._members_at[address]:
                    del self._members_at[address]

    def _drop_stranger(self, connection: ConnectionT) -> None:
        address = self._strangers.pop(connection)
        if address is not None:
            neighbours = self._strangers_at[address]
            del neighbours[connection]
            if not neighbours:
                del self._strangers_at[address]
