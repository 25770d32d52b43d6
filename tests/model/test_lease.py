from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.model.errors import ERROR_CODES, Refused
from posthouse.model.lease import (
    Denied,
    FenceTag,
    Grant,
    LeaseRequest,
    LockRow,
    LockView,
    Released,
    RequestRecord,
    acquire,
    fence_admits,
    fence_error,
    first_counter,
    inspect,
    is_active,
    release,
    remaining_ms,
    renew,
    reopen,
    validate_lease_ms,
    validate_request_id,
)
from posthouse.model.limits import DAY_S, MILLISECOND_NS, SECOND_NS
from posthouse.model.lock_scope import Asked

WALL = 1_700_000_000_000_000_000


def granted(outcome: Grant | Denied) -> LockRow:
    assert isinstance(outcome, Grant), outcome
    return outcome.row


def code(outcome: Grant | Released | Denied) -> str:
    assert isinstance(outcome, Denied), outcome
    assert outcome.code in ERROR_CODES
    return outcome.code


def take(
    row: LockRow | None,
    owner: str,
    now_ms: int,
    lease_ms: int = 1000,
    request_id: str | None = None,
    record: RequestRecord | None = None,
    wall_ns: int = WALL,
) -> Grant | Denied:
    next_token = 1 if row is None else row.token + 1
    asked = LeaseRequest((Asked("r", owner),), lease_ms, request_id)
    return acquire(asked, unreleased(row), ms(now_ms), wall_ns, lambda: next_token, record)


def unreleased(row: LockRow | None) -> list[LockRow]:
    """Return what a store finds of a resource: released rows do not count."""
    return [] if row is None or row.is_released else [row]


def ms(value: int) -> int:
    return value * MILLISECOND_NS


def test_a_lock_is_granted_held_and_taken_over_after_its_lease_and_not_before() -> None:
    first = granted(take(None, "ada", 0))
    assert first.token == 1
    assert take(first, "bob", 999) == Denied("held", {"holder": "ada", "remaining_ms": 1})
    assert code(take(first, "ada", 999)) == "held_by_self"
    second = take(first, "bob", 1000)
    assert isinstance(second, Grant)
    assert second.took_over
    assert (second.row.owner, second.row.token) == ("bob", 2)


def test_a_grant_tells_when_it_ends() -> None:
    outcome = take(None, "ada", 5)
    assert isinstance(outcome, Grant)
    assert outcome.expires_at_ns == WALL + ms(1000)
    assert outcome.row.deadline_boot_ns == ms(1005)
    assert not outcome.took_over


def test_expired_lease_cannot_be_renewed_or_released_even_if_nobody_took_it() -> None:
    row = granted(take(None, "ada", 0))
    assert code(renew(row, "ada", 1, 1000, ms(1000), WALL)) == "lease_expired"
    assert code(release(row, "ada", 1, ms(1000))) == "lease_expired"


def test_renewing_keeps_the_token_and_counts_from_now() -> None:
    row = granted(take(None, "ada", 0))
    renewed = granted(renew(row, "ada", 1, 5000, ms(999), WALL))
    assert (renewed.token, renewed.lease_ms, renewed.deadline_boot_ns) == (1, 5000, ms(5999))


def test_only_the_holder_with_its_present_token_renews_and_releases() -> None:
    assert code(renew(None, "ada", 1, 1000, 0, WALL)) == "unknown_resource"
    assert code(release(None, "ada", 1, 0)) == "unknown_resource"
    row = granted(take(granted(take(None, "ada", 0)), "ada", 2000))
    for wrong, owner, token in (("not_holder", "bob", 2), ("stale_token", "ada", 1), ("not_holder", "ada", 3)):
        assert code(renew(row, owner, token, 1000, ms(2000), WALL)) == wrong
        assert code(release(row, owner, token, ms(2000))) == wrong


def test_tokens_grow_through_release() -> None:
    row = granted(take(None, "ada", 0))
    freed = release(row, "ada", 1, ms(1))
    assert isinstance(freed, Released)
    (row,) = freed.rows
    assert inspect([row], "r", ms(1)) == LockView("r", False, None, 1, 0, last_owner="ada")
    assert code(renew(row, "ada", 1, 1000, ms(1), WALL)) == "not_holder"
    again = take(row, "bob", 1)
    assert isinstance(again, Grant)
    assert (again.row.token, again.took_over) == (2, False)


def test_inspect_tells_the_holder_or_the_last_token() -> None:
    row = granted(take(None, "ada", 0))
    assert inspect([], "r", 0) == LockView("r", False, None, 0, 0)
    assert inspect([row], "r", ms(400)) == LockView("r", True, "ada", 1, 600, (row,))
    assert inspect([row], "r", ms(1000)) == LockView("r", False, None, 1, 0, last_owner="ada")


def test_whoever_waits_the_remaining_time_finds_the_lease_over() -> None:
    row = granted(take(None, "ada", 0))
    now_ns = ms(300) + 1
    assert remaining_ms(row, now_ns) == 700
    assert not is_active(row, now_ns + ms(remaining_ms(row, now_ns)))


def test_a_restart_gives_a_lease_that_may_be_active_its_full_time_again() -> None:
    row = granted(take(None, "ada", 0))
    assert reopen(row, ms(5000)).deadline_boot_ns == ms(6000)
    assert reopen(row, ms(5000), ms(999)).deadline_boot_ns == ms(6000)
    freed = release(row, "ada", 1, 0)
    assert isinstance(freed, Released)
    assert reopen(freed.rows[0], ms(5000), void_token=9) == freed.rows[0]


def test_lease_that_was_over_before_a_restart_stays_over() -> None:
    row = granted(take(None, "ada", 0))
    assert reopen(row, ms(5000), ms(1000)) == row
    after_reboot = reopen(row, ms(1), ms(1000))
    assert not is_active(after_reboot, ms(1))
    assert not is_active(reopen(after_reboot, ms(7), ms(1)), ms(7))


def test_void_token_locks_the_holder_out_and_keeps_the_lock_taken() -> None:
    row = reopen(granted(take(None, "ada", 0)), ms(5000), void_token=700)
    assert code(renew(row, "ada", 1, 1000, ms(5001), WALL)) == "stale_token"
    assert code(take(row, "bob", 5001)) == "held"


def test_counter_starts_at_the_clock_in_microseconds_and_never_falls() -> None:
    wall_ns = 1_700_000_000_123_456_789
    assert first_counter(5, wall_ns) == 1_700_000_000_123_456
    assert first_counter(1_800_000_000_000_000, wall_ns) == 1_800_000_000_000_000
    assert first_counter(0, 2**63 - 1) < 2**53


def test_a_retry_gets_its_grant_while_it_is_active_and_is_spent_after() -> None:
    first = take(None, "ada", 0, request_id="q")
    assert isinstance(first, Grant)
    assert first.record == RequestRecord("q", 1000, 1, WALL + ms(1000), WALL)
    retry = take(first.row, "ada", 900, request_id="q", record=first.record, wall_ns=WALL + ms(900))
    assert isinstance(retry, Grant)
    assert retry.is_repeat
    assert (retry.row.token, retry.expires_at_ns, retry.record) == (1, first.expires_at_ns, None)
    assert code(take(first.row, "ada", 1000, request_id="q", record=first.record)) == "request_spent"
    later = granted(take(first.row, "ada", 1000))
    assert code(take(later, "ada", 1001, request_id="q", record=first.record)) == "request_spent"
    assert code(take(first.row, "ada", 5, lease_ms=2000, request_id="q", record=first.record)) == "request_reused"


def test_a_request_id_is_free_again_after_a_day() -> None:
    first = take(None, "ada", 0, request_id="q")
    assert isinstance(first, Grant)
    for wall_ns, is_spent in ((WALL + DAY_S * SECOND_NS - 1, True), (WALL + DAY_S * SECOND_NS, False)):
        outcome = take(first.row, "ada", 9999, request_id="q", record=first.record, wall_ns=wall_ns)
        assert isinstance(outcome, Denied) is is_spent


@pytest.mark.parametrize("lease_ms", [999, 600_001, 0, -1, 1000.0, True, None])
def test_a_lease_is_1_s_to_10_min(lease_ms: int) -> None:
    with pytest.raises(Refused) as caught:
        validate_lease_ms(lease_ms)
    assert caught.value.code == "lease_invalid"
    assert validate_lease_ms(1000) + validate_lease_ms(600_000) == 601_000


@pytest.mark.parametrize("request_id", ["", "x" * 256, "a\n", None, "\ud800"])
def test_a_request_id_is_printable_and_bounded(request_id: str) -> None:
    with pytest.raises(Refused) as caught:
        validate_request_id(request_id)
    assert caught.value.code == "request_id_invalid"
    assert validate_request_id("q" * 255)


@dataclass
class Model:
    """An oracle: who may believe to hold the lock, from the answers alone."""

    row: LockRow | None = None
    now_ns: int = 0
    tokens: list[int] = field(default_factory=list)
    #: owner -> (token, boot time until which it believes)
    beliefs: dict[str, tuple[int, int]] = field(default_factory=dict)

    def holders(self) -> list[str]:
        return [owner for owner, (_, until) in self.beliefs.items() if self.now_ns < until]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "renew", "release", "restart"]),
        st.sampled_from(["ada", "bob", "eve"]),
        st.integers(0, 1500),
        st.integers(1000, 2000),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(STEPS)
def test_any_history_has_one_holder_and_growing_tokens(steps: list[tuple[str, str, int, int]]) -> None:
    world = Model()
    for op, owner, wait_ms, lease_ms in steps:
        world.now_ns += ms(wait_ms)
        _step(world, op, owner, lease_ms)
        assert len(world.holders()) <= 1
        assert world.tokens == sorted(set(world.tokens))
        view = inspect([] if world.row is None else [world.row], "r", world.now_ns)
        for holder in world.holders():
            assert (view.owner, view.token) == (holder, world.beliefs[holder][0])


def _step(world: Model, op: str, owner: str, lease_ms: int) -> None:
    token, until = world.beliefs.get(owner, (1, 0))
    outcome: Grant | Released | Denied
    if op == "restart":
        world.row = None if world.row is None else reopen(world.row, world.now_ns)
        return
    if op == "acquire":
        was_active = world.row is not None and is_active(world.row, world.now_ns)
        asked = LeaseRequest((Asked("r", owner),), lease_ms)
        outcome = acquire(asked, unreleased(world.row), world.now_ns, WALL, lambda: len(world.tokens) + 1)
        assert isinstance(outcome, Grant) is not was_active
    elif op == "renew":
        outcome = renew(world.row, owner, token, lease_ms, world.now_ns, WALL)
    else:
        outcome = release(world.row, owner, token, world.now_ns)
        assert isinstance(outcome, Released) or world.now_ns >= until
    if isinstance(outcome, Denied):
        return
    (world.row,) = outcome.rows
    if op == "acquire":
        world.tokens.append(world.row.token)
    ends = world.now_ns + ms(lease_ms) if isinstance(outcome, Grant) else 0
    world.beliefs[owner] = (world.row.token, ends)


@given(st.lists(st.integers(1, 6), max_size=20), st.booleans())
def test_a_fence_lets_no_old_token_in(tokens: list[int], strict: bool) -> None:
    last: int | None = None
    admitted: list[int] = []
    for token in tokens:
        if fence_admits(last, token, strict):
            last = token
            admitted.append(token)
    assert admitted == sorted(admitted)
    if not strict:
        highest = [max(tokens[: n + 1]) for n in range(len(tokens))]
        assert admitted == [token for token, seen in zip(tokens, highest, strict=True) if token == seen]
    if strict:
        assert len(set(admitted)) == len(admitted)
    if tokens:
        assert admitted[0] == tokens[0]
        assert admitted[-1] == max(tokens)


@pytest.mark.parametrize(
    ("token", "author", "now_ms", "last_written", "strict", "expected"),
    [
        (2, "ada", 0, None, False, None),
        (2, "ada", 0, 2, False, None),
        (2, "ada", 0, 2, True, "fence_stale"),
        (2, "ada", 0, 1, True, None),
        (1, "ada", 0, None, False, "fence_stale"),
        (1, "bob", 0, None, False, "fence_stale"),
        (3, "ada", 0, None, False, "fence_unknown"),
        (2, "bob", 0, None, False, "fence_unknown"),
        (2, "ada", 1000, None, False, "fence_stale"),
    ],
)
def test_the_relay_judges_a_fence_by_the_lock(
    token: int, author: str, now_ms: int, last_written: int | None, strict: bool, expected: str | None
) -> None:
    row = LockRow("r", "ada", 2, 1000, ms(1000))
    assert fence_error(FenceTag("r", token, strict), author, [row], ms(now_ms), last_written) == expected


def test_a_fence_of_a_resource_nobody_locked_is_unknown_and_of_a_released_one_stale() -> None:
    assert fence_error(FenceTag("r", 1, False), "ada", [], 0) == "fence_unknown"
    row = LockRow("r", "ada", 1, 1000, ms(1000), is_released=True)
    assert fence_error(FenceTag("r", 1, False), "ada", [row], 0) == "fence_stale"


def test_a_tree_fences_the_names_below_it_and_a_shared_lease_fences_nothing() -> None:
    tree = LockRow("a", "ada", 5, 1000, ms(1000), is_tree=True)
    assert fence_error(FenceTag("a/b", 5, False), "ada", [tree], 0) is None
    assert fence_error(FenceTag("ab", 5, False), "ada", [tree], 0) == "fence_unknown"
    assert fence_error(FenceTag("a/b", 4, False), "ada", [tree], 0) == "fence_stale"
    assert fence_error(FenceTag("a/b", 5, False), "bob", [tree], 0) == "fence_unknown"
    assert fence_error(FenceTag("a/b", 5, False), "ada", [tree], ms(1000)) == "fence_stale"
    shared = LockRow("a", "ada", 5, 1000, ms(1000), is_shared=True)
    assert fence_error(FenceTag("a", 5, False), "ada", [shared], 0) == "fence_unknown"


def test_another_session_of_the_node_is_held_off_and_the_same_one_is_refused_without_a_token() -> None:
    row = LockRow("r", "ada", 5, 1000, ms(1000), session="one")
    other = acquire(LeaseRequest((Asked("r", "ada", "two"),), 1000), [row], 0, WALL, lambda: 6)
    assert other == Denied("held", {"holder": "ada", "remaining_ms": 1000})
    same = acquire(LeaseRequest((Asked("r", "ada", "one"),), 1000), [row], 0, WALL, lambda: 6)
    assert same == Denied("held_by_self", {"remaining_ms": 1000})


def test_renew_and_release_compare_the_session_only_if_it_is_given() -> None:
    row = LockRow("r", "ada", 5, 1000, ms(1000), session="one")
    assert code(renew(row, "ada", 5, 1000, 0, WALL, "two")) == "not_holder"
    assert code(release(row, "ada", 5, 0, "two")) == "not_holder"
    assert isinstance(renew(row, "ada", 5, 1000, 0, WALL), Grant)
    assert isinstance(release(row, "ada", 5, 0, "one"), Released)


def test_grant_ends_every_expired_lease_that_it_overlaps() -> None:
    over = LockRow("a/b", "bob", 3, 1000, ms(1000))
    outcome = acquire(LeaseRequest((Asked("a", "ada", is_tree=True),), 1000), [over], ms(1000), WALL, lambda: 6)
    assert isinstance(outcome, Grant) and outcome.expired == (over,)


def test_retry_of_several_locks_must_repeat_all_of_them() -> None:
    asked = LeaseRequest((Asked("a", "ada"), Asked("b", "ada")), 1000, "q")
    first = acquire(asked, [], 0, WALL, lambda: 6)
    assert isinstance(first, Grant) and first.record is not None
    repeat = acquire(asked, first.rows, 1, WALL, lambda: 7, first.record)
    assert isinstance(repeat, Grant) and repeat.is_repeat and repeat.rows == first.rows
    fewer = LeaseRequest((Asked("a", "ada"),), 1000, "q")
    assert acquire(fewer, first.rows, 1, WALL, lambda: 7, first.record) == Denied("request_reused", {"request_id": "q"})
    lost = acquire(asked, first.rows[:1], 1, WALL, lambda: 7, first.record)
    assert isinstance(lost, Denied) and lost.code == "request_spent"
