"""Strangers make room for newer ones, members stay, and the counts never drift."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from posthouse.http.admission import RESERVE, Admission, AdmissionLimits


def test_oldest_stranger_of_the_same_address_goes_first() -> None:
    admission: Admission[str] = Admission(AdmissionLimits(strangers_per_address=2))
    assert admission.enter("other", "b") == []
    assert [admission.enter(name, "a") for name in ("1", "2", "3", "4")] == [[], [], ["1"], ["2"]]
    assert len(admission) == 3


def test_member_is_never_displaced() -> None:
    admission: Admission[str] = Admission(AdmissionLimits(strangers_per_address=1, connections=1))
    admission.enter("member", "a")
    assert admission.promote("member", "n") is None
    gone = [name for number in range(3 * RESERVE) for name in admission.enter(f"{number}", f"{number % 7}")]
    assert "member" not in gone
    assert admission.strangers <= RESERVE


def test_new_connection_gets_in_although_members_use_every_connection() -> None:
    admission: Admission[int] = Admission(AdmissionLimits(connections=3))
    for number in range(3):
        admission.enter(number, "a")
        assert admission.promote(number, f"n{number}") is None
    for number in range(10, 10 + RESERVE):
        assert admission.enter(number, None) == []
    assert admission.enter(99, None) == [10]
    refusal = admission.promote(99, "n99")
    assert refusal is not None
    assert refusal.code == "connections_exhausted"


def test_members_of_one_address_are_bounded() -> None:
    admission: Admission[int] = Admission(AdmissionLimits(members_per_address=1))
    for number in (1, 2):
        admission.enter(number, "a")
    assert admission.promote(1, "n") is None
    assert admission.promote(2, "n") is not None
    admission.leave(1)
    assert admission.promote(2, "n") is None


def test_connections_of_one_member_are_bounded_whatever_their_address() -> None:
    admission: Admission[int] = Admission(AdmissionLimits(members_per_node=2))
    for number in range(4):
        admission.enter(number, f"address {number}")
    assert [admission.promote(number, "greedy") is None for number in range(3)] == [True, True, False]
    assert admission.promote(3, "other") is None
    admission.leave(0)
    assert admission.promote(2, "greedy") is None


def test_guests_take_no_place_of_members_and_make_room_for_no_stranger() -> None:
    admission: Admission[int] = Admission(AdmissionLimits(connections=4, strangers_per_address=2))
    for number in range(4):
        admission.enter(number, f"address {number}")
        assert (admission.admit_guest(number) is None) == (number < 2)  # half of all connections
    gone = [each for number in range(100, 300) for each in admission.enter(number, None)]
    assert not {0, 1} & set(gone)
    for number in range(400, 404):
        admission.enter(number, None)
        assert admission.promote(number, f"n{number}") is None


def test_guests_of_one_address_are_bounded() -> None:
    admission: Admission[int] = Admission(AdmissionLimits(connections=100, strangers_per_address=2))
    for number in range(3):
        admission.enter(number, "a")
        assert (admission.admit_guest(number) is None) == (number < 2)


def test_connection_of_a_proxy_counts_for_its_caller_once_that_is_known() -> None:
    admission: Admission[int] = Admission(AdmissionLimits(strangers_per_address=1))
    admission.enter(1, None)
    admission.enter(2, None)
    assert admission.enter(1, "a") == []
    assert admission.enter(2, "a") == [1]
    assert len(admission) == 1


steps = st.lists(
    st.tuples(
        st.sampled_from(["enter", "promote", "admit", "leave"]), st.integers(0, 12), st.sampled_from(["a", "b", None])
    ),
    max_size=80,
)


@given(steps)
def test_bounds_hold_and_nothing_is_left_behind(steps: list[tuple[str, int, str | None]]) -> None:
    admission: Admission[int] = Admission(AdmissionLimits(5, 2, 3, 2))
    open_now: dict[int, str | None] = {}
    for step, connection, address in steps:
        if step == "enter":
            for gone in admission.enter(connection, address):
                assert gone != connection
                del open_now[gone]
            open_now[connection] = address
        elif step == "promote":
            admission.promote(connection, f"n{connection % 3}")
        elif step == "admit":
            admission.admit_guest(connection)
        else:
            admission.leave(connection)
            open_now.pop(connection, None)
        assert len(admission) == len(open_now)
        assert all(len(each) <= 3 for each in admission._strangers_at.values())
        assert all(count <= 2 for count in (*admission._members_at.values(), *admission._members_of.values()))
        assert all(count <= 3 for count in admission._guests_at.values())
        assert admission._guests <= 2
    for connection in list(open_now):
        admission.leave(connection)
    counts = (admission._members_at, admission._members_of, admission._guests_at)
    assert (len(admission), admission._guests, admission._strangers_at, *map(dict, counts)) == (0, 0, {}, {}, {}, {})
