"""The rate limit over a sender's history."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.reliability import RateLimit
from posthouse.pipeline.whatif.proposed_rules import Attempt, simulate_sender
from tests.pipeline.whatif.attempts import attempt, refused

LIMIT = RateLimit(window_secs=10, max_per_window=2)


def codes(rows: list[Attempt], boots: tuple[int, ...] = (), config: RateLimit = LIMIT) -> list[tuple[str | None, int]]:
    return [(row.would, row.would_times) for row in simulate_sender(rows, boots, config)]


def test_third_publish_within_the_window_would_be_refused_with_the_text_of_the_bus() -> None:
    rows = [attempt(number, number) for number in range(1, 4)]
    decided = list(simulate_sender(rows, (), LIMIT))
    assert [row.would for row in decided] == [None, None, "rate_limited"]
    assert decided[-1].text == "rate limit exceeded: 2/2 messages in 10s window"


def test_copies_of_one_publish_count_once_and_share_their_verdict() -> None:
    copies = [attempt(3, 3, place=place, id="same") for place in ("a", "b", "c")]
    rows = [attempt(1, 1), attempt(2, 2), *copies]
    assert codes(rows)[2:] == [("rate_limited", 1), ("rate_limited", 0), ("rate_limited", 0)]
    assert codes(rows[1:]) == [(None, 0)] * 4


def test_refused_publish_leaves_no_trace_in_the_window() -> None:
    rows = [attempt(1, 0), attempt(2, 1), refused(3, 2, "rate_limited", times=5), attempt(4, 10.5)]
    assert codes(rows) == [(None, 0), (None, 0), ("rate_limited", 5), (None, 0)]


def test_wider_limit_lets_part_of_a_burst_through_and_counts_it() -> None:
    rows = [attempt(1, 0), refused(2, 1, "rate_limited", times=5), attempt(3, 2)]
    decided = list(simulate_sender(rows, (), RateLimit(window_secs=10, max_per_window=4)))
    assert [(row.would, row.was_times) for row in decided] == [
        *((None, 0), (None, 3)),
        *(("rate_limited", 2), ("rate_limited", 0)),
    ]


def test_charged_refusals_of_other_rules_fill_the_window() -> None:
    rows = [refused(1, 0, "backpressure", times=2, rated=True), attempt(2, 1)]
    assert codes(rows) == [(None, 0), ("rate_limited", 1)]


def test_mail_that_no_rate_applies_to_passes_and_does_not_count() -> None:
    rows = [attempt(number, number, rated=False) for number in range(1, 9)]
    assert codes([*rows, attempt(9, 9)]) == [(None, 0)] * 9


def test_another_boot_empties_the_window() -> None:
    rows = [attempt(1, 1), attempt(2, 2), attempt(4, 3)]
    assert codes(rows, boots=(3,)) == [(None, 0)] * 3
    assert codes(rows)[-1] == ("rate_limited", 1)


@given(st.lists(st.integers(0, 40), max_size=40), st.integers(0, 5), st.integers(1, 12))
def test_verdicts_equal_a_count_over_all_that_passed(times: list[int], most: int, window: int) -> None:
    rows = [attempt(number, at_s) for number, at_s in enumerate(sorted(times))]
    passed: list[int] = []
    expected = []
    for at_s in sorted(times):
        is_allowed = sum(at_s - window < each for each in passed) < most
        expected.append(None if is_allowed else "rate_limited")
        passed += [at_s] if is_allowed else []
    config = RateLimit(window_secs=window, max_per_window=most)
    assert [row.would for row in simulate_sender(rows, (), config)] == expected
