"""Which relays of a store are alive, and which of them leads: decided from counters and this relay's monotonic clock.

Every relay raises its counter in the store twice a second, and the leader that of its term as well. A relay counts as
lost when its counter has not changed for LOST_NS of the observer's own clock: no wall clock of another machine is
compared. This only decides when to try: whether a relay leads is decided in the store, where a term has one leader and
each of its transactions checks the term.
"""

from __future__ import annotations

from posthouse.model.limits import SECOND_NS
from posthouse.relay.store.shared_store import ClusterView

BEAT_S = 0.5
LOST_NS = 2 * SECOND_NS  # four beats: a pause of garbage collection or a slow commit is shorter
FORGOTTEN_NS = 30 * SECOND_NS  # after that the leader deletes the row of a lost relay


class Membership:
    """Derives the state of the cluster from views; made for one relay."""

    def __init__(self, relay_id: str) -> None:
        self.relay_id = relay_id
        #: relay -> its counter, and when it changed
        self._beats: dict[str, tuple[int, int]] = {}
        self._leader_beat: tuple[tuple[int, int], int] = ((0, 0), 0)
        self.view = ClusterView([], None)

    def note(self, view: ClusterView, now_ns: int) -> None:
        """Apply a view."""
        self.view = view
        beats = {}
        for row in view.relays:
            known = self._beats.get(row.relay_id)
            beats[row.relay_id] = known if known is not None and known[0] == row.beat else (row.beat, now_ns)
        self._beats = beats
        if view.leader is not None and self._leader_beat[0] != (view.leader.term, view.leader.beat):
            self._leader_beat = ((view.leader.term, view.leader.beat), now_ns)

    def peers(self, now_ns: int) -> dict[str, str]:
        """Return the URLs of the other relays that are alive, by relay id."""
        return {
            row.relay_id: row.url
            for row in self.view.relays
            if row.relay_id != self.relay_id and now_ns - self._beats[row.relay_id][1] < LOST_NS
        }

    def silence_s(self, relay_id: str, now_ns: int) -> float:
        """Return for how long the counter of a relay has not changed."""
        return (now_ns - self._beats[relay_id][1]) / SECOND_NS

    def forgotten(self, now_ns: int) -> list[str]:
        """Return the other relays that have been lost for a long time."""
        lost = [relay for relay, (_beat, at_ns) in self._beats.items() if now_ns - at_ns >= FORGOTTEN_NS]
        return [relay for relay in lost if relay != self.relay_id]

    def is_leader_lost(self, now_ns: int) -> bool:
        """Return True if there is no leader, or its counter has not changed for too long."""
        leader = self.view.leader
        return leader is None or not leader.relay_id or now_ns - self._leader_beat[1] >= LOST_NS

    def leads(self, term: int) -> bool:
        """Return True if this relay leads in a term, according to the last view."""
        leader = self.view.leader
        return leader is not None and (leader.term, leader.relay_id) == (term, self.relay_id)
