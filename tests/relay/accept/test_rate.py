from __future__ import annotations

from posthouse.model.clock import FakeClock
from posthouse.model.rate import Rate
from posthouse.relay.accept.rates import RateBuckets
from posthouse.relay.engine import RelayEngine
from posthouse.relay.wire.accept_results import Declined
from tests.relay.accept.answers import code, codes
from tests.relay.authors import ALICE, BOB

# the core of these tests: 100 events a second with a burst of 500, ephemeral 10 with a burst of 20


async def test_key_may_send_its_burst_and_then_its_rate(core: RelayEngine, clock: FakeClock) -> None:
    assert codes(await core.accept_many([ALICE.raw() for _ in range(500)])) == ["201"] * 500
    refused = await core.accept(ALICE.raw())
    assert isinstance(refused, Declined)
    assert (refused.status, refused.error.code, refused.error.fields["retry_after_s"]) == (429, "rate_limited", 0.01)
    clock.advance(0.05)
    assert codes([await core.accept(ALICE.raw()) for _ in range(6)]) == ["201"] * 5 + ["rate_limited"]


async def test_one_key_does_not_use_up_the_rate_of_another(core: RelayEngine) -> None:
    await core.accept_many([ALICE.raw() for _ in range(500)])
    assert code(await core.accept(ALICE.raw())) == "rate_limited"
    assert code(await core.accept(BOB.raw())) == "201"


async def test_known_event_costs_no_rate_and_is_answered_without_any_left(core: RelayEngine) -> None:
    first = ALICE.raw()
    await core.accept(first)
    for _ in range(300):
        assert code(await core.accept(first)) == "200"
    assert codes(await core.accept_many([ALICE.raw() for _ in range(499)])) == ["201"] * 499
    assert code(await core.accept(ALICE.raw())) == "rate_limited"
    assert code(await core.accept(first)) == "200"


async def test_ephemeral_events_have_a_rate_of_their_own(core: RelayEngine) -> None:
    assert codes([await core.accept(ALICE.raw(20_101)) for _ in range(21)]) == ["202"] * 20 + ["rate_limited"]
    assert code(await core.accept(ALICE.raw())) == "201"


async def test_refused_event_is_not_charged_for_a_mesh_that_is_not_there(core: RelayEngine) -> None:
    for _ in range(600):
        assert code(await core.accept(ALICE.raw(1, ("mesh", "nowhere")))) == "mesh_unknown"
    assert code(await core.accept(ALICE.raw())) == "201"


async def test_step_of_the_wall_clock_gives_no_tokens(core: RelayEngine, clock: FakeClock) -> None:
    await core.accept_many([ALICE.raw() for _ in range(500)])
    clock.step_wall(3_600)
    assert code(await core.accept(ALICE.raw())) == "rate_limited"


def test_keys_are_forgotten_beyond_the_bound_full_ones_first() -> None:
    buckets = RateBuckets(Rate(1, 2), max_keys=10)
    for number in range(5):
        buckets.take(f"early-{number}", 0)
    for number in range(5):
        buckets.take(f"late-{number}", 10**10)
        buckets.take(f"late-{number}", 10**10)
    buckets.take("one more", 10**10)
    assert len(buckets) == 6
    assert buckets.take("late-0", 10**10) > 0


def test_any_number_of_keys_stays_within_the_bound() -> None:
    buckets = RateBuckets(Rate(1, 2), max_keys=100)
    for number in range(5_000):
        buckets.take(str(number), 0)
        assert len(buckets) <= 100
