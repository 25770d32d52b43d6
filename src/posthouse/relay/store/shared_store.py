"""What several relays on one store share: commits, the relays themselves and their leader, sessions, challenges.

Each relay sees the commits of the others in commit order: a group first reads the commits since the last one, and
between groups a notification triggers a read. So everything that a relay keeps in memory (rights, live subscriptions,
reader sessions) changes in the one order of the journal, whichever relay wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from posthouse.relay.store.high_water import ServerTimeline
from posthouse.relay.wire.mesh_rows import MeshRows

R = TypeVar("R")
AnyUnit = TypeVar("AnyUnit")


class ForeignRecord(NamedTuple):
    """A journal record that another relay has written, with the event it is about."""

    seq: int
    type: str
    mesh: str | None
    actor: str | None
    ref: str | None
    #: JSON
    body: str
    #: the event as JSON; None: the record is not about a new event, or its content is gone
    raw: bytes | None
    #: node id of the recipient of a direct message
    recipient: str | None


class ForeignCommits(NamedTuple):
    """What other relays have committed, in order."""

    records: list[ForeignRecord]
    #: the meshes that these records changed, as they are now
    meshes: dict[str, MeshRows]


#: The type of the record of a retired key; it changes every mesh.
KEY_RETIRED = "key.retired"
#: Prefixes of the types of records that change a mesh: its rights, members, topics, subscriptions, blocks or rules.
MESH_RECORDS = ("mesh.", "member.", "topic.", "pinch.blocked", KEY_RETIRED)


class MeshesChanged(Exception):
    """Another relay changed a mesh after a decision about rights was made and before it was committed.

    Nothing was written. Once it is reported to the event loop, memory has the change, and the caller decides again.
    """


class Leadership(Protocol):
    """The part of this relay in the cluster; implemented by posthouse.relay.cluster.cluster."""

    @property
    def is_leader(self) -> bool:
        """Whether this relay leads."""
        ...

    def check_term(self) -> None:
        """Raise leader_lost inside a transaction unless this relay leads; the term then lasts until the commit."""
        ...


class Charge:
    """Which relay does the recurring work of a store, such as sweeping: the only one, or the leader of several."""

    def __init__(self, leadership: Leadership | None = None) -> None:
        self._leadership = leadership

    @property
    def is_here(self) -> bool:
        """Whether this relay does the work now."""
        return self._leadership is None or self._leadership.is_leader

    def fenced(self, work: Callable[[AnyUnit], R]) -> Callable[[AnyUnit], R]:
        """Return the work of the relay in charge: it fails with leader_lost if another one leads at its commit."""
        leadership = self._leadership
        if leadership is None:
            return work

        def in_term(unit: AnyUnit) -> R:
            leadership.check_term()
            return work(unit)

        return in_term


class KnowsChanges(Protocol):
    """The part of a unit of work that `if_current` needs."""

    @property
    def meshes_changed_at(self) -> int: ...


UnitT = TypeVar("UnitT", bound=KnowsChanges)


def if_current(work: Callable[[UnitT], R], decided_at: int) -> Callable[[UnitT], R]:
    """Return a unit that raises MeshesChanged instead of working if rights were decided before another relay's change.

    `decided_at` is the seq of the last such change that memory had.
    """

    def run(unit: UnitT) -> R:
        if unit.meshes_changed_at > decided_at:
            raise MeshesChanged
        return work(unit)

    return run


class RelayRow(NamedTuple):
    """A relay that has, or had, this store open."""

    relay_id: str
    #: URL under which the other relays reach it
    url: str
    beat: int


class LeaderRow(NamedTuple):
    """The leader of a term."""

    term: int
    #: empty: the leader has left
    relay_id: str
    beat: int
    boot_id: str
    #: boot time of its last beat
    boot_ns: int


class ClusterView(NamedTuple):
    """The cluster as the store had it at one moment."""

    relays: list[RelayRow]
    #: None: no relay has ever led
    leader: LeaderRow | None


class SharedStore(Protocol):
    """The part of a store that relays share."""

    def follow(self, on_commits: Callable[[ForeignCommits], None]) -> None:
        """Call `on_commits` on this loop with what other relays commit, in commit order with the results of units."""
        ...

    @property
    def server(self) -> ServerTimeline:
        """The server that the store was last written on."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether this relay has confirmed lately that it knows the head of the journal."""
        ...

    async def claim(self, relay: str) -> None:
        """Make this the key of all relays of this store, or raise relay_key_differs if they have another one.

        A relay that has the store to itself may change the key: the former one may be lost.
        """
        ...

    async def open_deliveries(self, mesh: str, node: str, seqs: Sequence[int]) -> set[int]:
        """Return which of these deliveries of a reader are open."""
        ...

    def beat(self, relay_id: str, url: str, term: int | None, boot_ns: int) -> ClusterView:
        """Raise the counter of a relay, and of the term that it leads; return the state of the store. Blocks."""
        ...

    def begin_term(self, former: int, relay_id: str, boot_id: str, boot_ns: int) -> bool:
        """Make a relay the leader of the term after `former`; return False if another relay was faster. Blocks."""
        ...

    def leave(self, relay_id: str) -> None:
        """Remove a relay that stops; if it was the leader, the others need not wait. Blocks."""
        ...

    def forget_relays(self, relay_ids: Sequence[str]) -> None:
        """Forget relays that are lost. Blocks."""
        ...

    def check_term(self, term: int) -> None:
        """Raise leader_lost unless a term is the present one, which then lasts until the commit; inside a unit."""
        ...

    async def next_session(self, mesh: str, node: str) -> int:
        """Return the number of a new reader session of a node; writes of sessions before it are dropped from now on."""
        ...

    def session_numbers(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return the number of the newest session of each of these nodes, given with its mesh; inside a unit."""
        ...

    async def spend_challenge(self, challenge: bytes, now_ms: int, until_ms: int) -> bool:
        """Note that a challenge, valid until `until_ms`, was answered; return False if it was noted before."""
        ...
