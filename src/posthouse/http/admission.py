"""Which connections a server keeps: strangers make room for newer strangers, members and guests are never displaced.

A connection is a stranger until a request or a login on it has proved the key of a member. Strangers are bounded per
address and in all. A new connection always gets in: if there is no room, the oldest stranger under the same bound is
closed, so a flood of silent connections stops neither a login nor a health check. Members are bounded per node, per
address and in all; if there is no room for another one, the login is refused. A guest has proved a key that anyone can
make: guests have the bound of strangers per address and half of all connections, so they take no room from members.
Counting only; the server closes what `enter` returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from posthouse.model.errors import PosthouseError, error

ConnectionT = TypeVar("ConnectionT", bound=Hashable)
RESERVE = 64  # strangers that have room even if members use all connections: for health checks


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Bounds of connections; None: not limited."""

    connections: int | None = None
    members_per_address: int | None = None
    strangers_per_address: int | None = None
    members_per_node: int | None = None

    @property
    def guests(self) -> int | None:
        """The maximum number of guests."""
        return None if self.connections is None else max(1, self.connections // 2)


NO_LIMITS = AdmissionLimits()


class _Place(NamedTuple):
    """The bounds that a member's or guest's connection counts against."""

    address: str | None
    #: None: a guest
    node: str | None


class Admission(Generic[ConnectionT]):
    """The open connections of one server, by address."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        #: strangers with their address, oldest first; None: not counted per address
        self._strangers: dict[ConnectionT, str | None] = {}
        self._strangers_at: dict[str, dict[ConnectionT, None]] = {}
        self._places: dict[ConnectionT, _Place] = {}
        self._guests = 0
        self._members_at: Counter[str] = Counter()
        self._guests_at: Counter[str] = Counter()
        self._members_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._places)

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
            room = max(RESERVE, limits.connections - len(self._places))
            if len(self._strangers) >= room:
                gone.append(next(iter(self._strangers)))
        for each in gone:
            self.leave(each)
        self._strangers[connection] = address
        if address is not None:
            self._strangers_at.setdefault(address, {})[connection] = None
        return gone

    def promote(self, connection: ConnectionT, node: str = "") -> PosthouseError | None:
        """Make a stranger a member, or return why there is no room for it; a server without nodes omits `node`."""
        if connection not in self._strangers:
            return None  # a member already, or gone
        limits, address = self._limits, self._strangers[connection]
        bounds = [
            (len(self._places) - self._guests, limits.connections),
            (0 if address is None else self._members_at[address], limits.members_per_address),
            (self._members_of[node], limits.members_per_node),
        ]
        return self._give_place(connection, _Place(address, node), bounds)

    def admit_guest(self, connection: ConnectionT) -> PosthouseError | None:
        """Make a stranger a guest, or return why there is no room for it."""
        if connection not in self._strangers:
            return None
        limits, address = self._limits, self._strangers[connection]
        bounds = [
            (self._guests, limits.guests),
            (0 if address is None else self._guests_at[address], limits.strangers_per_address),
        ]
        return self._give_place(connection, _Place(address, None), bounds)

    def leave(self, connection: ConnectionT) -> None:
        """Remove a connection, if it is there."""
        if connection in self._strangers:
            self._drop_stranger(connection)
        elif (place := self._places.pop(connection, None)) is not None:
            self._count(place, -1)

    def _give_place(
        self, connection: ConnectionT, place: _Place, bounds: list[tuple[int, int | None]]
    ) -> PosthouseError | None:
        for count, most in bounds:
            if most is not None and count >= most:
                return error("connections_exhausted", limit=most)
        self._drop_stranger(connection)
        self._places[connection] = place
        self._count(place, 1)
        return None

    def _count(self, place: _Place, step: int) -> None:
        if place.node is None:
            self._guests += step
        else:
            _add(self._members_of, place.node, step)
        if place.address is not None:
            _add(self._guests_at if place.node is None else self._members_at, place.address, step)

    def _drop_stranger(self, connection: ConnectionT) -> None:
        address = self._strangers.pop(connection)
        if address is not None:
            neighbours = self._strangers_at[address]
            del neighbours[connection]
            if not neighbours:
                del self._strangers_at[address]


def _add(counts: Counter[str], key: str, step: int) -> None:
    counts[key] += step
    if not counts[key]:
        del counts[key]
