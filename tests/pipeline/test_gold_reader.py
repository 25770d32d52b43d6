"""Cost from a hand-written table: by agent, model and day, priced where nobody stated a price, against a budget."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from posthouse.model.usage import Price, Prices
from posthouse.pipeline.gold_reader import GoldReader, Selection
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.delta import SCHEMA_VERSION
from posthouse.pipeline.publish_stats import SpentAlert, spent_alerts

CLAUDE = f"ed25519:{'a1' * 32}/claude"
#: day, mesh, sender, model, input tokens, output tokens, reported dollars
ROWS = (
    ("2026-11-01", "main", CLAUDE, "granite", 1_000_000, 100_000, "3.50"),
    ("2026-11-01", "main", "agents.claude", "granite", 0, 0, "0.50"),
    ("2026-11-02", "main", CLAUDE, "heron-2", 2_000_000, 500_000, "0"),
    ("2026-11-02", "other", "agents.codex", "unknown", 5, 5, "0"),
)
PRICES = Prices({"heron-*": Price(input=1.0, output=2.0), "granite": Price(input=99.0, output=99.0)})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    texts = ("day", "mesh", "sender", "model")
    columns = dict(zip((*texts, "input_tokens", "output_tokens", "cost_usd"), zip(*ROWS, strict=True), strict=True))
    table = pa.table(
        {name: pa.array(values) for name, values in columns.items() if name != "cost_usd"}
        | {"messages": pa.array([1] * len(ROWS))}
        | {"cost_usd": pa.array([Decimal(str(each)) for each in columns["cost_usd"]], pa.decimal128(28, 9))}
    )
    description = f"posthouse.schema_version={SCHEMA_VERSION}"
    write_deltalake(str(tmp_path / "gold_cost_daily"), table, description=description)
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


def test_budget_of_a_day_raises_one_alert_per_day_and_agent(lake: Lake) -> None:
    reader = GoldReader(lake, Selection(), PRICES)
    assert spent_alerts(reader, 3.5, None) == [SpentAlert("over_budget", "", "2026-11-01", 4)]
    assert spent_alerts(reader, None, 2.9) == [
        SpentAlert("over_budget", "claude@a1a1a1a1…", "2026-11-01", 4),
        SpentAlert("over_budget", "claude@a1a1a1a1…", "2026-11-02", 3),
    ]
    assert spent_alerts(reader, 100.0, 100.0) == spent_alerts(reader, None, None) == []
