"""Cost from a hand-written table: by agent, model and day, priced where nobody stated a price, against a budget."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from posthouse.model.errors import PosthouseError
from posthouse.model.usage import Price, Prices
from posthouse.pipeline.gold_reader import GoldReader, Selection
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.delta import SCHEMA_VERSION
from posthouse.pipeline.publish_stats import SpentAlert, spent_alerts

CLAUDE = f"ed25519:{'a1' * 32}/claude"
#: day, mesh, agent, model, task, input, output and cached tokens, reported dollars
ROWS = (
    ("2026-11-01", "main", CLAUDE, "granite", "T-1", 1_000_000, 100_000, 0, "3.50"),
    ("2026-11-01", "main", "agents.claude", "granite", "", 0, 0, 0, "0.50"),
    ("2026-11-02", "main", CLAUDE, "heron-2", "T-1", 2_000_000, 500_000, 1_000_000, None),
    ("2026-11-02", "other", "agents.codex", "unknown", "", 5, 5, 0, None),
)
PRICES = Prices({"heron-*": Price(input=1.9, cached=0.1, output=2.0), "granite": Price(input=99.0, output=99.0)})


def _dollars(reported: str | None) -> float | None:
    return None if reported is None else float(reported)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    names = ("day", "mesh", "agent", "model", "task", "input_tokens", "output_tokens", "cached_tokens")
    rows: list[dict[str, Any]] = [dict(zip((*names, "cost_usd"), row, strict=True)) for row in ROWS]
    for row in rows:
        is_priced = row["cost_usd"] is not None
        row |= {f"unpriced_{name}": 0 if is_priced else row[name] for name in names if name.endswith("tokens")}
        row |= {"messages": 1, "cost_usd": Decimal(str(row["cost_usd"] or 0))}
    table = pa.Table.from_pylist(rows)
    description = f"posthouse.schema_version={SCHEMA_VERSION}"
    write_deltalake(str(tmp_path / "gold_cost_daily"), table, description=description)
    places = [{"source": "relay", "message_id": f"m{number}"} for number in range(len(ROWS))]
    texts = pa.schema([(name, pa.string()) for name in ("source", "message_id", "conversation")])
    found = [place | {"conversation": f"c{number % 2}"} for number, place in enumerate(places)]
    conversations = pa.Table.from_pylist(found, texts)
    write_deltalake(str(tmp_path / "silver_conversation_messages"), conversations, description=description)
    messages: list[dict[str, Any]] = [
        {**place, **dict(zip(names, row, strict=False)), "cost_usd": _dollars(row[-1]), "lost_by_restore": False}
        for place, row in zip(places, ROWS, strict=True)
    ]
    messages.append(messages[0] | {"message_id": "silent", "model": None})
    write_deltalake(str(tmp_path / "silver_messages"), pa.Table.from_pylist(messages), description=description)
    traffic = pa.table({"mesh": ["main", "", "other"]})
    write_deltalake(str(tmp_path / "gold_traffic_hourly"), traffic, description=description)
    agents = pa.table({"agent": [CLAUDE, "agents.claude", "agents.codex"]})
    write_deltalake(str(tmp_path / "gold_agents_hourly"), agents, description=description)
    return Lake(tmp_path)


def test_reported_cost_counts_and_the_rest_is_priced(lake: Lake) -> None:
    by_day = {row["day"]: row["cost_usd"] for row in GoldReader(lake, Selection(), PRICES).costs("day")}
    assert by_day == {"2026-11-01": pytest.approx(4.0), "2026-11-02": pytest.approx(2.0 + 1.0)}
    unpriced = {row["day"]: row["cost_usd"] for row in GoldReader(lake, Selection()).costs("day")}
    assert unpriced["2026-11-02"] == 0.0


def test_one_agent_is_one_row_whatever_store_named_it(lake: Lake) -> None:
    rows = GoldReader(lake, Selection(), PRICES).costs("agent")
    assert {row["agent"]: row["cost_usd"] for row in rows} == {
        "claude@a1a1a1a1…": pytest.approx(7.0),
        "codex": 0.0,
    }
    assert [row["model"] for row in GoldReader(lake, Selection(agent="claude"), PRICES).costs("model")] == [
        "granite",
        "heron-2",
    ]


def test_mesh_or_agent_that_the_lake_does_not_have_is_refused_with_those_that_it_has(lake: Lake) -> None:
    for wrong, hint in ((Selection(mesh="mian"), "main, other"), (Selection(agent="codx"), "codex")):
        with pytest.raises(PosthouseError) as refused:
            GoldReader(lake, wrong)
        assert refused.value.code == "usage" and hint in refused.value.hint
    assert GoldReader(lake, Selection(mesh="other")).costs("model")[0]["model"] == "unknown"


def test_task_is_what_its_messages_cost(lake: Lake) -> None:
    rows = GoldReader(lake, Selection(), PRICES).costs("task")
    assert {row["task"]: row["cost_usd"] for row in rows} == {"T-1": pytest.approx(6.5), "": pytest.approx(0.5)}


def test_conversation_is_what_its_messages_cost_priced_like_everything_else(lake: Lake) -> None:
    rows = GoldReader(lake, Selection(), PRICES).costs("conversation")
    assert {row["conversation"]: (row["messages"], row["cost_usd"]) for row in rows} == {
        "c0": (2, pytest.approx(6.5)),
        "c1": (2, pytest.approx(0.5)),
    }
    of_codex = GoldReader(lake, Selection(agent="codex"), PRICES).costs("conversation", "agent")
    assert [(row["conversation"], row["agent"], row["input_tokens"]) for row in of_codex] == [("c1", "codex", 5)]


def test_budget_of_a_day_raises_one_alert_per_day_and_agent(lake: Lake) -> None:
    reader = GoldReader(lake, Selection(), PRICES)
    assert spent_alerts(reader, 3.5, None) == [SpentAlert("over_budget", "", "2026-11-01", 4)]
    assert spent_alerts(reader, None, 2.9) == [
        SpentAlert("over_budget", "claude@a1a1a1a1…", "2026-11-01", 4),
        SpentAlert("over_budget", "claude@a1a1a1a1…", "2026-11-02", 3),
    ]
    assert spent_alerts(reader, 100.0, 100.0) == spent_alerts(reader, None, None) == []


def test_table_of_an_older_posthouse_asks_for_a_run(lake: Lake, tmp_path: Path) -> None:
    old = pa.table({"day": ["2026-11-01"], "sender": [CLAUDE]})
    description = f"posthouse.schema_version={SCHEMA_VERSION}"
    path = str(tmp_path / "gold_cost_daily")
    write_deltalake(path, old, mode="overwrite", schema_mode="overwrite", description=description)
    with pytest.raises(PosthouseError) as refused:
        GoldReader(lake, Selection()).costs("day")
    assert refused.value.code == "lake_outdated" and "pipeline run" in refused.value.hint


def test_table_that_a_killed_first_load_did_not_reach_asks_for_a_run_and_is_not_shown_as_nothing(
    lake: Lake, tmp_path: Path
) -> None:
    assert list(GoldReader(lake, Selection()).latency()) == []  # no history, no figures
    description = f"posthouse.schema_version={SCHEMA_VERSION}"
    write_deltalake(str(tmp_path / "bronze_journal"), pa.table({"seq": [1]}), description=description)
    with pytest.raises(PosthouseError) as refused:
        list(GoldReader(lake, Selection()).latency())
    assert (refused.value.code, refused.value.fields["table"]) == ("lake_outdated", "gold_latency_hourly")
