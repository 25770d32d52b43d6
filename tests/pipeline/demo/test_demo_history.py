"""The made-up history is sound, complete and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import structlog

from posthouse.cli.config import load_settings
from posthouse.cli.log import log_to_stderr
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.pipeline.demo.bus_scene import is_planned
from posthouse.pipeline.demo.demo_history import DAYS, START_NS, DemoHistory, make_history
from posthouse.relay.ops.maintenance import check_relay
from posthouse.sqlite.connection import open_reader

END_NS = START_NS + (DAYS + 1) * 86_400 * 1_000_000_000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> DemoHistory:
    return make_history(tmp_path_factory.mktemp("history") / "made", seed=3, agents=8, messages=1_000)


def records_of(path: Path) -> list[Record]:
    db = open_reader(path)
    try:
        return read_after(db, 0, 1_000_000)
    finally:
        db.close()


def shape(history: DemoHistory) -> list[tuple[str, int, str]]:
    """What of a history follows from its seed: types in order, times, and reasons."""
    found = [*records_of(history.relay_db), *records_of(history.bus_db)]
    return [(record.type, record.at_ns, record.decoded_body().get("reason", "")) for record in found]


def test_relay_check_finds_nothing_in_the_store(history: DemoHistory) -> None:
    assert check_relay(history.relay_db) == []


def test_history_has_what_the_pipeline_looks_for(history: DemoHistory) -> None:
    counts = Counter(record.type for path in (history.relay_db, history.bus_db) for record in records_of(path))
    wanted = {
        *("message.accepted", "confirmation.accepted", "delivery.sent", "delivery.confirmed", "delivery.rejected"),
        *("delivery.expired", "delivery.requeued", "delivery.purged", "delivery.dead", "refused", "member.blocked"),
        *("lock.acquired", "lock.renewed", "lock.released", "lock.taken_over"),
        *("bus.published", "bus.handled", "bus.failed", "bus.dead", "bus.refused"),
    }
    assert wanted - counts.keys() == set()
    assert 0.9 * 1_000 <= counts["message.accepted"] + counts["bus.published"] <= 1.2 * 1_000


def test_bus_refuses_for_every_reason(history: DemoHistory) -> None:
    records = records_of(history.bus_db)
    refused = {record.ref for record in records if record.type == "bus.refused"}
    assert refused == {"rate_limited", "backpressure", "circuit_open"}
    letters = {record.decoded_body()["reason"].partition(" ")[0] for record in records if record.type == "bus.dead"}
    assert {"access", "max", "message", "no"} <= letters


def test_history_fills_its_week_and_not_more(history: DemoHistory) -> None:
    times = [record.at_ns for path in (history.relay_db, history.bus_db) for record in records_of(path)]
    assert min(times) >= START_NS and max(times) < END_NS
    assert len({at_ns // (86_400 * 10**9) for at_ns in times}) >= DAYS


def test_same_seed_tells_the_same_story_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (
        make_history(tmp_path / name, seed=seed, agents=5, messages=120)
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert shape(first) == shape(again)
    assert shape(first) != shape(other)


def test_what_the_scene_lets_fail_stays_out_of_the_log_and_everything_else_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = structlog.get_config()
    values = load_settings({"log.level": "warning"}, {"POSTHOUSE_HOME": str(tmp_path)})
    try:
        log_to_stderr(values, drop=is_planned)
        history = make_history(tmp_path / "quiet", seed=3, agents=8, messages=1_000)
        quiet = capsys.readouterr().err
        structlog.get_logger().error("handler_failed", exception="Traceback\n  line\nValueError: a defect")
    finally:
        structlog.configure(**before)
    types = {record.type for record in records_of(history.bus_db)}
    assert {"bus.failed", "bus.refused"} <= types
    assert quiet == ""
    assert "a defect" in capsys.readouterr().err
