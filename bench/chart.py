"""The chart of docs/benchmarks.md: how far each measured figure is above its requirement.

    python -m bench.chart store.json bus.json relay.json ... > docs/benchmarks.svg

Reads reports of `python -m bench PART --json`. A bar shows the measured figure divided by the required one (inverted
where less is better), so that the line at 1 is the requirement and a longer bar is better, whatever the unit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

_ROW_PX = 22
_LABEL_PX = 470
_UNIT_PX = 70  # one time the reference
_LONGEST = 6.0  # longer bars are cut, with their number beside them
_MOST_TIMES = 1_000  # shown for a figure that may be zero or less, such as growth
_STYLE = "text{font:12px sans-serif;fill:#57606a}.bar{fill:#2f81f7}.below{fill:#d1242f}.line{stroke:#8b949e}"


class Bar(NamedTuple):
    """One figure: its name, and how many times the reference of the chart it is."""

    name: str
    times: float


def bars_of(reports: Iterable[dict[str, Any]]) -> list[Bar]:
    """Return a bar for every required figure of the reports."""
    return [
        Bar(f"{report.get('bench', 'bus')}: {figure['name']}", _times_required(figure))
        for report in reports
        for figure in _figures(report)
    ]


def _figures(report: dict[str, Any]) -> list[dict[str, Any]]:
    if "required" in report:
        return list(report["required"])
    return [
        {"name": name.replace("_", " "), "value": result["ratio"], "sense": "at least", "bound": result["required"]}
        for name, result in report["results"].items()
    ]


def _times_required(figure: dict[str, Any]) -> float:
    value, bound = float(figure["value"]), float(figure["bound"])
    return value / bound if figure["sense"] == "at least" else bound / max(value, bound / _MOST_TIMES)


def draw(
    bars: Sequence[Bar], line_label: str = "required", title: str = "Measured figures relative to what is required"
) -> str:
    """Return the chart as SVG; the line at 1 carries the label."""
    width, height = _LABEL_PX + round(_LONGEST * _UNIT_PX) + 70, (len(bars) + 1) * _ROW_PX + 8
    rows = "".join(_row(bar, index) for index, bar in enumerate(bars))
    line_x = _LABEL_PX + _UNIT_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{_STYLE}</style>\n{rows}'
        f'<line class="line" x1="{line_x}" y1="0" x2="{line_x}" y2="{height - _ROW_PX}"/>\n'
        f'<text x="{line_x}" y="{height - 8}" text-anchor="middle">{escape(line_label)}</text>\n</svg>\n'
    )


def _row(bar: Bar, index: int) -> str:
    y = index * _ROW_PX + 4
    length = round(min(bar.times, _LONGEST) * _UNIT_PX)
    kind = "bar" if bar.times >= 1 else "below"
    return (
        f'<text x="{_LABEL_PX - 8}" y="{y + 12}" text-anchor="end">{escape(bar.name)}</text>'
        f'<rect class="{kind}" x="{_LABEL_PX}" y="{y}" width="{length}" height="{_ROW_PX - 8}" rx="2"/>'
        f'<text x="{_LABEL_PX + length + 6}" y="{y + 12}">{bar.times:{".1f" if bar.times >= 1 else ".2f"}}x</text>\n'
    )


def main(paths: Sequence[str]) -> None:
    """Write the chart of the reports at `paths` to standard output."""
    sys.stdout.write(draw(bars_of(json.loads(Path(path).read_text()) for path in paths)))


if __name__ == "__main__":
    main(sys.argv[1:])
