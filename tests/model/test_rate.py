from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.limits import SECOND_NS
from posthouse.model.rate import Rate, check_rate, check_rate_log, full_bucket, is_full, take
from posthouse.model.reliability import RateLimit


@given(
    gaps=st.lists(st.integers(0, 3 * SECOND_NS), max_size=60),
    window_s=st.integers(1, 5),
    limit=st.integers(0, 6),
)
def test_the_window_agrees_with_a_naive_log(gaps: list[int], window_s: int, limit: int) -> None:
    config = RateLimit(window_secs=window_s, max_per_window=limit)
    now_ns, log = 0, list[int]()
    for gap in gaps:
        now_ns += gap
        recent = [t for t in log if now_ns - t < window_s * SECOND_NS]
        verdict = check_rate_log(log, "a", now_ns, config)
        assert verdict.allowed == (len(recent) < limit)
        assert verdict.count == len(recent)
        kept = [t for t in log if t > verdict.horizon_ns]
        assert kept == recent
        if verdict.allowed:
            log = [*kept, now_ns]
    for start in log:
        assert sum(start <= t < start + window_s * SECOND_NS for t in log) <= limit


def test_the_text_of_a_refusal() -> None:
    verdict = check_rate(100, "a", 0, RateLimit())
    assert verdict.text == "rate limit exceeded: 100/100 messages in 60s window"
    assert not verdict.allowed


def test_a_disabled_limit_lets_everything_through() -> None:
    assert check_rate(10_000, "a", 0, RateLimit(enabled=False)).allowed


def test_the_longest_prefix_at_a_token_boundary_overrides() -> None:
    config = RateLimit(max_per_window=1, per_sender_overrides={"agents": 2, "agents.fast": 3, "agents.fast.x": 4})
    limits = {
        sender: config.limit_for(sender)
        for sender in (
            "agents",
            "agents.slow",
            "agents.fast",
            "agents.fast.y",
            "agents.fast.x.z",
            "agents.faster",
            "agent",
        )
    }
    assert limits == {
        "agents": 2,
        "agents.slow": 2,
        "agents.fast": 3,
        "agents.fast.y": 3,
        "agents.fast.x.z": 4,
        "agents.faster": 2,
        "agent": 1,
    }


@given(
    rate=st.builds(Rate, per_s=st.integers(1, 50), burst=st.integers(1, 20)),
    gaps=st.lists(st.integers(-SECOND_NS, 2 * SECOND_NS), max_size=40),
)
def test_a_bucket_never_gives_more_than_burst_and_rate(rate: Rate, gaps: list[int]) -> None:
    bucket, now_ns, taken = full_bucket(rate, 0), 0, 0
    latest_ns = 0
    for gap in gaps:
        now_ns += gap
        latest_ns = max(latest_ns, now_ns)
        bucket, wait_ns = take(bucket, rate, now_ns)
        taken += wait_ns == 0
        assert taken * SECOND_NS <= rate.burst * SECOND_NS + latest_ns * rate.per_s


@given(rate=st.builds(Rate, per_s=st.integers(1, 50), burst=st.integers(1, 20)))
def test_the_wait_a_bucket_tells_is_exact(rate: Rate) -> None:
    bucket, now_ns = full_bucket(rate, 0), 0
    for _ in range(rate.burst):
        bucket, wait_ns = take(bucket, rate, now_ns)
        assert wait_ns == 0
    bucket, wait_ns = take(bucket, rate, now_ns)
    assert wait_ns > 0
    assert take(bucket, rate, now_ns + wait_ns - 1)[1] > 0
    assert take(bucket, rate, now_ns + wait_ns)[1] == 0
    assert not is_full(bucket, rate, now_ns)
    assert is_full(bucket, rate, now_ns + rate.burst * SECOND_NS)


def test_a_clock_that_steps_back_takes_nothing_from_a_bucket() -> None:
    rate = Rate(per_s=10, burst=5)
    bucket, _ = take(full_bucket(rate, SECOND_NS), rate, SECOND_NS)
    after, wait_ns = take(bucket, rate, 0, tokens=4)
    assert wait_ns == 0
    assert take(after, rate, SECOND_NS)[1] == 100_000_000


def test_more_than_the_burst_is_lent_by_a_full_bucket_only() -> None:
    rate = Rate(per_s=10, burst=5)
    bucket, wait_ns = take(full_bucket(rate, 0), rate, 0, tokens=8)
    assert wait_ns == 0
    assert take(bucket, rate, 0)[1] == 400_000_000
