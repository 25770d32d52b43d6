"""The report of the comparison: the goals of posthouse, and the table, the configurations and the chart of the docs.

    python -m bench.peers.peers_report docs/benchmarks-peers.json

writes the table into docs/benchmarks.md, between the marks of the generated part, and the chart beside it. The report
is that of `make peers`. Ratios are medians of the repetitions' ratios, because other load of the machine affects all
contestants of a repetition alike.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.bus import DORKOS
from bench.chart import Bar, draw
from bench.comparison import median_ratio
from bench.peers.works import BATCH_SIGNATURE, POSTHOUSE, Work

_DORKOS_NAME = "DorkOS"
#: not in a Debian package, so its rates on this class of machine (Node 20, two cores, 256 bytes) are constants
_DORKOS = {Work.BUS: DORKOS["one_by_one_per_s"], Work.BUS_64: DORKOS["in_flight_64_per_s"]}
_BUSY = """**Other work kept the machine busy during this run.** Most operations waited for a processor, and a system
whose operation takes more steps in more processes waited more often. Take only the order of magnitude of the ratios
from it, no rates, and repeat it on an idle machine before a goal counts as met or missed.
"""
BEGIN, END = "<!-- made by bench.peers.peers_report: begin -->", "<!-- made by bench.peers.peers_report: end -->"


class Goal(NamedTuple):
    """A rate of posthouse, relative to the rate of another system at the same work."""

    work: Work
    ours: str
    other: str
    #: "required" or "aim"
    kind: str
    at_least: float


GOALS = (
    Goal(Work.PUBLISH, POSTHOUSE, "RabbitMQ", "required", 0.9),
    Goal(Work.PUBLISH, POSTHOUSE, "JetStream", "aim", 1.0),
    Goal(Work.PUBLISH_64, POSTHOUSE, "etcd", "required", 0.9),
    Goal(Work.PUBLISH_64, POSTHOUSE, "etcd", "aim", 1.1),
    Goal(Work.PUBLISH_64, BATCH_SIGNATURE, "etcd", "required", 1.3),
    Goal(Work.PUBLISH_64, BATCH_SIGNATURE, "etcd", "aim", 2.0),
    Goal(Work.LOCK, POSTHOUSE, "Redis", "required", 0.8),
    Goal(Work.LOCK, POSTHOUSE, "Redis", "aim", 1.0),
    Goal(Work.BUS, POSTHOUSE, _DORKOS_NAME, "required", 15),
    Goal(Work.BUS, POSTHOUSE, _DORKOS_NAME, "aim", 25),
    Goal(Work.BUS_64, POSTHOUSE, _DORKOS_NAME, "required", 20),
    Goal(Work.BUS_64, POSTHOUSE, _DORKOS_NAME, "aim", 40),
)


class Side(NamedTuple):
    """One side of a goal: the rates of its repetitions, and the rate of its fastest operations."""

    repetitions: list[float]
    undisturbed: float


def evaluate_goals(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every goal whose two sides were measured, with the ratios and whether it is met."""
    found = []
    for goal in GOALS:
        work = report["works"].get(goal.work, {"repetitions_per_s": {}})
        ours, other = (_side(goal.work, work, name) for name in (goal.ours, goal.other))
        if ours is not None and other is not None:
            found.append(_evaluate(goal, work["title"], ours, other))
    return found


def _side(work: Work, measured: dict[str, Any], name: str) -> Side | None:
    """Return the rates of a contestant; None if it did not do the work."""
    rates = measured["repetitions_per_s"]
    if name == _DORKOS_NAME and POSTHOUSE in rates:
        return Side([_DORKOS[work]] * len(rates[POSTHOUSE]), _DORKOS[work])
    return Side(rates[name], measured["undisturbed_per_s"][name]) if name in rates else None


def _evaluate(goal: Goal, title: str, ours: Side, other: Side) -> dict[str, Any]:
    ratio = median_ratio(ours.repetitions, other.repetitions)
    return {
        "name": f"{title}: {goal.ours}, relative to {goal.other} ({goal.kind})",
        "value": ratio,
        "undisturbed": round(ours.undisturbed / other.undisturbed, 3),
        "sense": "at least",
        "bound": goal.at_least,
        "met": ratio >= goal.at_least,
    }


def names_of(report: dict[str, Any]) -> list[str]:
    """Return the names of all measured operations, in the order of the contestants."""
    return list(dict.fromkeys(name for work in report["works"].values() for name in work["per_s"]))


def rows_of(report: dict[str, Any], rates: str = "per_s") -> list[list[str]]:
    """Return a row for every work: its title and the rate of every name of `names_of`."""
    names = names_of(report)
    return [
        [work["title"], *(f"{work[rates][name]:,}" if name in work[rates] else "" for name in names)]
        for work in report["works"].values()
    ]


def configurations_of(report: dict[str, Any]) -> list[list[str]]:
    """Return a row for every contestant: name, version, durability and client."""
    return [[name, each["version"], each["durability"], each["client"]] for name, each in report["contestants"].items()]


def bars_of(report: dict[str, Any]) -> list[Bar]:
    """Return a bar for every work and other contestant: posthouse relative to it, by their fastest operations."""
    return [
        Bar(f"{work['title']}: {name}", rates[POSTHOUSE] / rate)
        for work in report["works"].values()
        for rates in [work["undisturbed_per_s"]]
        for name, rate in rates.items()
        if POSTHOUSE in rates and not name.startswith(POSTHOUSE)
    ]


def page_of(report: dict[str, Any]) -> str:
    """Return the generated part of the page: when and where, the rates, the goals and the configurations."""
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    machine, (load_before, load_after) = report["machine"], report["load_average"]
    yield (
        f"Measured on {report['at'][:10]}: {machine['cpus']} virtual cores ({machine['processor']}), Linux "
        f"{machine['kernel']}, Python {machine['python']}, load average {load_before} at the start and {load_after} at "
        f"the end; {report['repetitions']} repetitions, bodies of {report['body_bytes']} bytes. Rates are per second, "
        "the median of the repetitions:"
    )
    columns = ["work", *names_of(report)]
    yield from ("", *_table(columns, rows_of(report)), "")
    if max(load_before, load_after) > 2 * machine["cpus"]:
        yield _BUSY
    yield "The rates of the fastest twentieth of the operations, which other load of the machine delays least:"
    yield from ("", *_table(columns, rows_of(report, "undisturbed_per_s")), "")
    goals = [
        [
            each["name"],
            f"{each['value']:.2f}",
            f"{each['undisturbed']:.2f}",
            f"{each['bound']:g}",
            "yes" if each["met"] else "no",
        ]
        for each in report["required"]
    ]
    columns = ["posthouse, relative to another system", "median", "fastest twentieth", "median at least", "met"]
    yield from (*_table(columns, goals), "")
    yield from _table(["contestant", "version", "durable before the answer", "client"], configurations_of(report))
    for name, reason in report["skipped"].items():
        yield f"\n{name} was left out: {reason}."


def _table(columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def chart_of(report: dict[str, Any]) -> str:
    """Return the chart as SVG."""
    return draw(bars_of(report), "equal", "Rates of posthouse relative to the rates of other systems")


def write_page(path: Path) -> None:
    """Write the chart of a report beside it, and its tables into benchmarks.md of the same directory."""
    report = json.loads(path.read_text())
    path.with_suffix(".svg").write_text(chart_of(report))
    page = path.with_name("benchmarks.md")
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{page_of(report)}\n{END}{after}")


if __name__ == "__main__":
    write_page(Path(sys.argv[1]))
