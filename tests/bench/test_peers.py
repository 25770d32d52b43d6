"""The comparison with other systems: interleaving, goals, the generated page, and short runs with what is installed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.peers import peers_report
from bench.peers.bare_files import BareFiles
from bench.peers.comparison_run import CONTESTANTS, compare_peers
from bench.peers.posthouse_itself import PosthouseBus, PosthouseRelay
from bench.peers.works import BATCH_SIGNATURE, FLOOR, PLANS, POSTHOUSE, Configuration, Contestant, Operation, Plan, Work
from tests.cli.command_line import CommandLine

DOCS = Path(__file__).parents[2] / "docs"
OURS = (BareFiles, PosthouseRelay, PosthouseBus)
PEERS = [each for each in CONTESTANTS if each not in OURS]
ONCE = {work: replace(plan, operations=1) for work, plan in PLANS.items()}


def run_once(folder: Path, works: Sequence[Work], *contestants: type[Contestant]) -> dict[str, Any]:
    return compare_peers(folder, {work: ONCE[work] for work in works}, 1, lambda _: None, contestants)


class Recorder(Contestant):
    """A contestant that records what it is asked for."""

    calls: list[str]

    async def start(self, folder: Path) -> Configuration:
        self._stack.callback(self.calls.append, f"{self.name} stopped")
        return Configuration("1", "none", "none", {"folder": folder.name})

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {Work.PUBLISH: [Operation(self.name, self._run, self._prepare)]}

    async def _prepare(self) -> None:
        self.calls.append("prepare")

    async def _run(self) -> None:
        self.calls.append(self.name)


def recorders(*names: str) -> tuple[list[str], list[type[Contestant]]]:
    calls: list[str] = []
    return calls, [type(name, (Recorder,), {"name": name, "calls": calls}) for name in names]


def test_each_iteration_runs_every_contestant_once_in_an_order_that_changes(tmp_path: Path) -> None:
    calls, contestants = recorders("a", "b", "c")
    plan = {Work.PUBLISH: Plan("publish", 1, 50)}
    report = compare_peers(tmp_path, plan, 2, lambda _: None, contestants)
    ran = [call for call in calls if call in ("a", "b", "c")][-300:]
    iterations = ["".join(ran[start : start + 3]) for start in range(0, 300, 3)]
    assert {"".join(sorted(each)) for each in iterations} == {"abc"}
    assert len(set(iterations)) == 6
    assert [len(each) for each in report["works"]["publish"]["repetitions_per_s"].values()] == [2, 2, 2]


def test_every_operation_is_prepared_and_every_contestant_stops_even_if_one_fails(tmp_path: Path) -> None:
    calls, (first, second) = recorders("a", "b")

    async def fail(_: Contestant) -> None:
        raise RuntimeError("broken")

    second._run = fail  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="broken"):
        compare_peers(tmp_path, {Work.PUBLISH: Plan("publish", 1, 1)}, 1, lambda _: None, (first, second))
    assert calls == ["prepare", "a", "prepare", "b stopped", "a stopped"]


def test_contestant_without_its_server_or_client_is_left_out_by_name(tmp_path: Path) -> None:
    calls, (first, second) = recorders("a", "b")
    second.programs, second.client_modules = ("no-such-server",), ("no_such_module",)
    report = compare_peers(tmp_path, {Work.PUBLISH: Plan("publish", 1, 1)}, 1, lambda _: None, (first, second))
    missing = "missing: program no-such-server, Python module no_such_module; bench/peers/install"
    assert report["skipped"] == {"b": missing}
    assert list(report["works"]["publish"]["per_s"]) == ["a"]
    assert "b" not in calls


def report_of(publish: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    fastest = {name: max(rates) for name, rates in publish.items()}
    work = {"title": "one publish at a time", "repetitions_per_s": publish, "undisturbed_per_s": fastest}
    return {"works": {"publish": work}}


def test_goal_is_the_median_of_the_ratios_of_each_repetition() -> None:
    slow_hour = {POSTHOUSE: [90, 9, 900], "RabbitMQ": [100, 10, 1_000], "JetStream": [80, 10, 1_000]}
    goals = peers_report.evaluate_goals(report_of(slow_hour))
    assert [(each["value"], each["met"]) for each in goals] == [(0.9, True), (0.9, False)]
    assert [each["undisturbed"] for each in goals] == [0.9, 0.9]
    assert [each["name"].partition("(")[2] for each in goals] == ["required)", "aim)"]


def test_goal_whose_other_side_was_not_measured_is_left_out() -> None:
    assert peers_report.evaluate_goals(report_of({POSTHOUSE: [1.0]})) == []


def test_page_and_chart_are_those_of_the_stored_report() -> None:
    report = json.loads((DOCS / "benchmarks-peers.json").read_text())
    page = (DOCS / "benchmarks.md").read_text()
    assert f"{peers_report.BEGIN}\n{peers_report.page_of(report)}\n{peers_report.END}" in page
    assert (DOCS / "benchmarks-peers.svg").read_text() == peers_report.chart_of(report)


def test_command_runs_the_contestants_of_the_chosen_work_and_leaves_nothing_behind(
    bench: CommandLine, tmp_path: Path
) -> None:
    outcome = bench("peers", "--works", "bus-64", "--repetitions", "1", "--quick", "--dir", str(tmp_path), "--json")
    assert outcome.exit == 0
    assert list(outcome.value["contestants"]) == [FLOOR, "posthouse bus"]
    assert set(outcome.value["works"]["bus-64"]["per_s"]) == {FLOOR, POSTHOUSE}
    assert not list(tmp_path.glob("posthouse-bench-*"))


def test_command_shows_people_rates_goals_and_configurations(bench: CommandLine, tmp_path: Path) -> None:
    outcome = bench("peers", "--works", "bus", "--repetitions", "1", "--quick", "--dir", str(tmp_path))
    assert outcome.exit == 0
    for shown in ("one by one", "DorkOS", "contestant", "limits raised"):
        assert shown in outcome.out


def test_command_refuses_a_work_that_does_not_exist(bench: CommandLine, tmp_path: Path) -> None:
    assert bench("peers", "--works", "juggle", "--dir", str(tmp_path)).exit == 2


def test_posthouse_publishes_with_both_kinds_of_signature_and_locks(tmp_path: Path) -> None:
    report = run_once(tmp_path, (Work.PUBLISH, Work.PUBLISH_64, Work.LOCK), PosthouseRelay)
    rates = {work: list(each["per_s"]) for work, each in report["works"].items()}
    assert rates == {"publish": [POSTHOUSE], "publish-64": [POSTHOUSE, BATCH_SIGNATURE], "lock": [POSTHOUSE]}


@pytest.mark.parametrize("peer", PEERS, ids=lambda each: each.name)
def test_peer_does_all_its_works_and_leaves_no_process(peer: type[Contestant]) -> None:
    if absent := peer().missing():
        pytest.skip(f"{peer.name} is not installed: {', '.join(absent)}")
    with tempfile.TemporaryDirectory() as folder:  # unlike tmp_path, servers of other users can reach it
        report = run_once(Path(folder), list(peer().operations()), peer)
    assert all(each["per_s"][peer.name] > 0 for each in report["works"].values())
    assert not [process for process in Path("/proc").glob("[0-9]*") if folder in command_of(process)]


def command_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""
