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
    assert admission.promote("member") is None
    gone = [name for number in range(3 * RESERVE) for name in admission.enter(f"{number}", f"{number % 7}")]
    assert "member" not in gone
    assert admission.strangers <= RESERVE


def test_new_connection_gets_in_although_members_use_every_connection() -> None:
    admission: Admission[int] = Admission(AdmissionLimits(connections=3))
    for number in range(3):
        admission.enter(number, "a")
        assert admission.promote(number) is None
    for number in range(10, 10 + RESERVE):
        assert admission.enter(number, None) == []
    assert admission.enter(99, None) == [10]
    refusal = admission.promote(99)
    assert refusal is not None
    assert refusal.code == "connections_exhausted"


def test_members_of_one_address_are_bounded() -> None:
    admission: Admission[int] = Admission(AdmissionLimits(members_per_address=1))
    for number in (1, 2):
        admission.enter(number, "a")
    assert admission.promote(1) is None
    assert admission.promote(2) is not None
    admission.leave(1)
    assert admission.promote(2) is None


def test_connection_of_a_proxy_counts_for_its_caller_once_that_is_known() -> None:
    admission: Admission[int] = Admission(AdmissionLimits(strangers_per_address=1))
    admission.enter(1, None)
    admission.enter(2, None)
    assert admission.enter(1, "a") == []
    assert admission.enter(2, "a") == [1]
    assert len(admission) == 1


steps = st.lists(
    st.tuples(st.sampled_from(["enter", "promote", "leave"]), st.integers(0, 12), st.sampled_from(["a", "b", None])),
    max_size=80,
)


@given(steps)
def test_bounds_hold_and_nothing_is_left_behind(steps: list[tuple[str, int, str | None]]) -> None:
    admission: Admission[int] = Admission(AdmissionLimits(5, 2, 3))
    open_now: dict[int, str | None] = {}
    for step, connection, address in steps:
        if step == "enter":
            for gone in admission.enter(connection, address):
                assert gone != connection
                del open_now[gone]
            open_now[connection] = address
        elif step == "promote":
            admission.promote(connection)
        else:
            admission.leave(connection)
            open_now.pop(connection, None)
        assert len(admission) == len(open_now)
        assert all(len(each) <= 3 for each in admission._strangers_at.values())
        assert all(count <= 2 for count in admission._members_at.values())
    for connection in list(open_now):
        admission.leave(connection)
    assert (len(admission), admission._strangers_at, dict(admission._members_at)) == (0, {}, {})
