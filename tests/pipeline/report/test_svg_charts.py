"""Axes, spans and words of the charts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.pipeline.gold_reader import middle
from posthouse.pipeline.report.markup import count, dollars, duration, fitted, share
from posthouse.pipeline.report.svg_charts import Plane, Spans, bands, round_steps, spread_labels


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_axis_has_a_few_round_steps_that_reach_the_largest_value(most: float) -> None:
    steps = round_steps(most)
    assert steps[0] == 0
    assert steps[-1] >= most * (1 - 1e-9)
    assert 2 <= len(steps) <= 7


@given(st.integers(0, 500_000), st.integers(0, 20_000), st.integers(2, 200))
def test_every_hour_has_a_span_and_spans_fit_the_width(first: int, length: int, most: int) -> None:
    spans = Spans(first, first + length, most)
    assert spans.count <= most or spans.step == 24 * 28
    for hour in (first, first + length // 2, first + length):
        assert 0 <= spans.index(hour) < spans.count
    assert all(0 <= index < spans.count for index, _ in spans.labels())


def test_labels_that_would_touch_are_left_out() -> None:
    crowded = spread_labels(Plane(100, 50), [(float(x), "2 Mar") for x in range(0, 100, 5)])
    assert 1 <= crowded.count("<text") <= 3


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (count(999), "999"),
        (count(12_345), "12,345"),
        (count(2_500_000), "2.5M"),
        (share(9_999, 10_000), "99.9 %"),
        (share(1, 100_000), "<0.1 %"),
        (share(1, 0), "–"),
        (duration(250), "250 ms"),
        (duration(90_000), "1.5 min"),
        (duration(None), "–"),
        (dollars(0.004), "<$0.01"),
        (dollars(12.5), "$12.50"),
        (fitted("abcdef", 4), "abc…"),
    ],
)
def test_figures_read_as_people_write_them(shown: str, words: str) -> None:
    assert shown == words


def test_latency_is_drawn_as_bands_with_a_gap_where_nothing_was_delivered() -> None:
    points = [(10.0, 100.0, 1_000.0), None, (20.0, 40.0, 80.0)]
    drawn = bands(Plane(300, 150), "latency", points, [(0, "Mon")], ["one", "two", "three"], "c1")
    assert drawn.count("band1") == drawn.count("band2") == 2
    assert "one: median 10 ms, p90 100 ms, p99 1 s" in drawn and "two" not in drawn
    path = drawn.partition(' d="')[2].partition('"')[0]
    assert path.count("M") == 2  # the line of the medians begins anew behind the gap


def test_middle_counts_each_value_as_often_as_its_weight() -> None:
    assert middle([(1.0, 5), (1_000_000.0, 4)]) == 1.0
    assert middle([(3.0, 1), (1.0, 1), (2.0, 1)]) == 2.0
    assert middle([]) is None
