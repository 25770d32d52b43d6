from __future__ import annotations

from bench.mirror import QUICK_EVENTS, measure_mirror


def test_ten_differences_take_few_kilobytes() -> None:
    report = measure_mirror(QUICK_EVENTS // 5, lambda _text: None)
    assert all(each["met"] for each in report["required"]), report
    assert report["exchange"]["kilobytes"] > 1
