from __future__ import annotations

from xml.etree import ElementTree

from bench.chart import Bar, bars_of, draw

REPORT = {
    "bench": "relay",
    "required": [
        {"name": "fan-out/s", "value": 400_000, "sense": "at least", "bound": 100_000},
        {"name": "query p50 ms", "value": 5, "sense": "at most", "bound": 10},
    ],
}


def test_bar_is_longer_the_better_the_figure_is_whether_more_or_less_is_required() -> None:
    assert bars_of([REPORT]) == [Bar("relay: fan-out/s", 4.0), Bar("relay: query p50 ms", 2.0)]


def test_figure_below_zero_is_shown_as_a_large_multiple() -> None:
    shrunk = {"name": "memory growth", "value": -1.3, "sense": "at most", "bound": 8}
    assert bars_of([{"bench": "bus", "required": [shrunk]}]) == [Bar("bus: memory growth", 1_000.0)]


def test_store_report_has_bars_too() -> None:
    report = {"bench": "store", "results": {"in_flight_64": {"ratio": 0.9, "required": 0.45}}}
    assert bars_of([report]) == [Bar("store: in flight 64", 2.0)]


def test_chart_is_svg_and_marks_a_figure_below_its_requirement() -> None:
    chart = draw([Bar("good & fast", 2.0), Bar("too slow", 0.5)])
    rectangles = ElementTree.fromstring(chart).findall("{http://www.w3.org/2000/svg}rect")
    assert [each.get("class") for each in rectangles] == ["bar", "below"]
    assert rectangles[0].get("width") == "140"
