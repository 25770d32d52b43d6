"""Relays are judged by counters on the observer's own clock."""

from __future__ import annotations

from posthouse.model.limits import SECOND_NS
from posthouse.relay.cluster.membership import FORGOTTEN_NS, LOST_NS, Membership
from posthouse.relay.store.shared_store import ClusterView, LeaderRow, RelayRow

ME, OTHER = "me", "other"
START = 10**18  # whatever the clock says


def view(other_beat: int, *, leader: str = OTHER, term: int = 1, leader_beat: int = 0) -> ClusterView:
    relays = [RelayRow(ME, "http://me", 5), RelayRow(OTHER, "http://other", other_beat)]
    return ClusterView(relays, LeaderRow(term, leader, leader_beat, "boot", 0))


def test_relay_counts_as_alive_until_its_counter_has_not_changed_for_two_seconds() -> None:
    membership = Membership(ME)
    membership.note(view(1), START)
    membership.note(view(2), START + SECOND_NS)
    assert membership.peers(START + SECOND_NS + LOST_NS - 1) == {OTHER: "http://other"}
    membership.note(view(2), START + SECOND_NS + LOST_NS)
    assert membership.peers(START + SECOND_NS + LOST_NS) == {}
    membership.note(view(3), START + 10 * SECOND_NS)
    assert membership.peers(START + 10 * SECOND_NS) == {OTHER: "http://other"}


def test_leader_is_lost_when_its_own_counter_stands_still_although_the_relay_is_alive() -> None:
    membership = Membership(ME)
    membership.note(view(1, leader_beat=1), START)
    membership.note(view(9, leader_beat=1), START + LOST_NS)
    assert membership.is_leader_lost(START + LOST_NS)
    membership.note(view(9, leader_beat=0, term=2), START + LOST_NS)
    assert not membership.is_leader_lost(START + LOST_NS)


def test_leader_that_has_left_is_lost_at_once_and_so_is_one_that_never_was() -> None:
    membership = Membership(ME)
    assert membership.is_leader_lost(START)
    membership.note(view(1, leader=""), START)
    assert membership.is_leader_lost(START)


def test_relay_leads_only_in_the_term_that_the_store_shows() -> None:
    membership = Membership(ME)
    membership.note(view(1, leader=ME, term=4), START)
    assert membership.leads(4)
    membership.note(view(1, leader=OTHER, term=5), START)
    assert not membership.leads(4)


def test_relay_that_is_lost_for_long_is_forgotten() -> None:
    membership = Membership(ME)
    membership.note(view(1), START)
    assert membership.forgotten(START + FORGOTTEN_NS - 1) == []
    assert membership.forgotten(START + FORGOTTEN_NS) == [OTHER]
