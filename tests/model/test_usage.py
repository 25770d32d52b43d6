"""Usage of a message: its form, and the price of what does not state one."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.model.envelope import Usage
from posthouse.model.errors import PosthouseError
from posthouse.model.usage import Prices, usage_fields, with_usage

TABLE = """
["granite-*"]
input = 1.0
output = 2.0
["granite-large-*"]
input = 4.0
cached = 0.4
output = 8.0
[granite-large-2]
input = 5.0
output = 9.0
"""


def test_usage_becomes_a_member_of_meta_in_either_spelling() -> None:
    usage = Usage(model="m", input_tokens=9, output_tokens=2, cached_tokens=4, task="T-1")
    expected = {"model": "m", "input_tokens": 9, "output_tokens": 2, "cached_tokens": 4, "task": "T-1"}
    assert with_usage(None, usage) == {"usage": expected}
    assert with_usage(
        {"a": 1}, {"model": "m", "inputTokens": 9, "output_tokens": 2, "cachedTokens": 4, "task": "T-1"}
    ) == {
        "a": 1,
        "usage": expected,
    }
    assert with_usage({"a": 1}, None) == {"a": 1}
    assert with_usage(None, None) is None
    assert usage_fields({"model": "m", "cost_usd": 0.0})["cost_usd"] == 0.0  # free is a price


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"model": "m", "input_tokens": -1},
        {"model": "m", "input_tokens": "9"},
        {"model": "m", "cost_usd": -0.1},
        {"model": "m", "tokens": 3},
    ],
)
def test_usage_of_another_form_is_refused(usage: dict[str, Any]) -> None:
    with pytest.raises(PosthouseError) as refused:
        with_usage(None, usage)
    assert refused.value.code == "value_invalid"


def test_second_usage_that_differs_is_refused() -> None:
    with pytest.raises(PosthouseError, match="differs"):
        with_usage({"usage": {"model": "other"}}, {"model": "m"})


@pytest.mark.parametrize(
    ("model", "cost_usd"),
    [
        ("granite-large-2", 2 * 5.0 + 1 * 5.0 + 3 * 9.0),  # its own line; cached tokens cost what others do
        ("granite-large-9", 2 * 4.0 + 1 * 0.4 + 3 * 8.0),  # the longest pattern
        ("granite-small", 2 * 1.0 + 1 * 1.0 + 3 * 2.0),
        ("heron", None),
    ],
)
def test_price_is_that_of_the_name_or_of_the_longest_pattern(model: str, cost_usd: float | None) -> None:
    million = 1_000_000
    found = Prices.parse(TABLE).cost_usd(model, 3 * million, million, 3 * million)
    assert found == (None if cost_usd is None else pytest.approx(cost_usd))


@pytest.mark.parametrize(
    "text",
    [
        *("[m", "[m]\ninput = 1", "[m]\ninput = -1\noutput = 1", "[m]\ninput=1\noutput=1\nout=2"),
        *("[m]\ninput = inf\noutput = 1", "[m]\ninput = 1\noutput = nan"),
    ],
)
def test_damaged_price_table_is_named(text: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        Prices.parse(text, "/home/prices.toml")
    assert refused.value.code == "config_unreadable" and "/home/prices.toml" in str(refused.value)
    assert ("m: " in str(refused.value)) is (text != "[m") and "dollars per million tokens" in refused.value.hint
