from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.breaker import BreakerState, Circuit, admit, record_failure, record_success, refusal_text, withdraw
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.reliability import CircuitBreaker

CONFIG = CircuitBreaker()
BOOT = "boot-1"
COOLDOWN_NS = CONFIG.cooldown_ms * MILLISECOND_NS


def opened(at_ns: int = 0, config: CircuitBreaker = CONFIG) -> BreakerState:
    state = BreakerState(boot_id=BOOT)
    for _ in range(config.failure_threshold):
        state = record_failure(state, config, at_ns, BOOT)
    assert state.circuit is Circuit.OPEN
    return state


def test_only_failures_in_a_row_open_the_circuit() -> None:
    state = BreakerState(boot_id=BOOT)
    for _ in range(20):
        for _ in range(CONFIG.failure_threshold - 1):
            state = record_failure(state, CONFIG, 0, BOOT)
        state = record_success(state, CONFIG, BOOT)
    assert state.circuit is Circuit.CLOSED
    assert opened().circuit is Circuit.OPEN


def test_an_open_circuit_refuses_until_the_cooldown_is_over() -> None:
    state = opened(at_ns=7)
    assert admit(state, CONFIG, 7 + COOLDOWN_NS - 1, BOOT) == (state, False)
    after, passes = admit(state, CONFIG, 7 + COOLDOWN_NS, BOOT)
    assert passes
    assert after.circuit is Circuit.HALF_OPEN


@given(st.integers(1, 5))
def test_half_open_admits_exactly_its_probe_count(probes: int) -> None:
    config = CircuitBreaker(half_open_probe_count=probes)
    state, now_ns, passed = opened(config=config), COOLDOWN_NS, 0
    for _ in range(20):
        state, passes = admit(state, config, now_ns, BOOT)
        passed += passes
    assert passed == probes


def test_enough_successes_close_it_and_one_failure_opens_it_again() -> None:
    state, _ = admit(opened(), CONFIG, COOLDOWN_NS, BOOT)
    state = record_success(state, CONFIG, BOOT)
    assert state.circuit is Circuit.HALF_OPEN
    state, passes = admit(state, CONFIG, COOLDOWN_NS, BOOT)
    assert passes
    assert record_success(state, CONFIG, BOOT) == BreakerState(boot_id=BOOT)
    failed = record_failure(state, CONFIG, COOLDOWN_NS + 1, BOOT)
    assert failed.circuit is Circuit.OPEN
    assert not admit(failed, CONFIG, 2 * COOLDOWN_NS, BOOT)[1]
    assert admit(failed, CONFIG, 2 * COOLDOWN_NS + 1, BOOT)[1]


def test_a_probe_that_never_reports_gives_its_place_back_after_a_cooldown() -> None:
    state, _ = admit(opened(), CONFIG, COOLDOWN_NS, BOOT)
    assert not admit(state, CONFIG, 2 * COOLDOWN_NS - 1, BOOT)[1]
    assert admit(state, CONFIG, 2 * COOLDOWN_NS, BOOT)[1]


def test_a_probe_that_a_later_rule_refused_gives_its_place_back() -> None:
    state, _ = admit(opened(), CONFIG, COOLDOWN_NS, BOOT)
    assert admit(withdraw(state), CONFIG, COOLDOWN_NS, BOOT)[1]


def test_latecomers_do_not_keep_an_open_circuit_open_or_close_it() -> None:
    state = opened()
    assert record_failure(state, CONFIG, 5, BOOT) == state
    assert record_success(state, CONFIG, BOOT) == state


def test_a_state_of_another_boot_counts_as_closed() -> None:
    assert admit(opened(), CONFIG, 0, "boot-2") == (BreakerState(boot_id="boot-2"), True)


def test_a_disabled_breaker_admits_everything() -> None:
    off = CircuitBreaker(enabled=False)
    assert admit(opened(), off, 0, BOOT)[1]
    assert record_failure(BreakerState(failures=4, boot_id=BOOT), off, 0, BOOT).circuit is Circuit.CLOSED


@given(steps=st.lists(st.tuples(st.sampled_from(["publish", "fail", "succeed"]), st.integers(0, 40_000)), max_size=60))
def test_invariants_hold_through_any_history(steps: list[tuple[str, int]]) -> None:
    config = CircuitBreaker(failure_threshold=2, half_open_probe_count=2)
    state, now_ns = BreakerState(boot_id=BOOT), 0
    for step, wait_ms in steps:
        now_ns += wait_ms * MILLISECOND_NS
        before = state
        if step == "publish":
            state, passes = admit(state, config, now_ns, BOOT)
            assert passes or before.circuit is not Circuit.CLOSED
            if before.circuit is Circuit.OPEN:
                assert passes == (now_ns - before.since_boot_ns >= COOLDOWN_NS)
        elif step == "fail":
            state = record_failure(state, config, now_ns, BOOT)
        else:
            state = record_success(state, config, BOOT)
        assert 0 <= state.probes <= config.half_open_probe_count
        assert state.failures < config.failure_threshold
        assert state.successes < config.success_to_close
        if before.circuit is Circuit.OPEN and state.circuit is not Circuit.OPEN:
            assert step == "publish"


def test_the_text_of_a_refusal() -> None:
    assert refusal_text("0123456789ab") == "circuit open for endpoint 0123456789ab"
