"""Conversations of reply chains, also of those that run in a circle."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from posthouse.pipeline.tables.silver_conversation_messages import conversation_messages

pytestmark = pytest.mark.xdist_group("spark")
_COLUMNS = (
    "source string, mesh string, message_id string, reply_to string, conversation_id string, sender string, "
    "at_ns bigint, input_tokens bigint, output_tokens bigint, cost_usd double, day string, lost_by_restore boolean"
)


def test_chains_follow_their_first_message_and_circles_their_smallest_id(spark: SparkSession) -> None:
    replies: dict[str, tuple[str | None, str | None]] = {
        "a": (None, None),
        **{f"a{number}": (f"a{number - 1}" if number else "a", None) for number in range(9)},  # a chain of ten
        "b": ("unknown", None),
        "c": ("a", "talk"),
        "c1": ("c", None),
        "x": ("z", None),  # a circle of three, and two messages that lead into it
        "y": ("x", None),
        "z": ("y", None),
        "t": ("u", None),
        "u": ("y", None),
    }
    rows = [
        ("bus", None, id_, reply_to, named, "s", 1, None, None, None, "2026-01-01", False)
        for id_, (reply_to, named) in replies.items()
    ]
    messages = spark.createDataFrame(rows, _COLUMNS).coalesce(1)
    found = {
        row["message_id"]: (row["conversation"], row["depth"])
        for row in conversation_messages({"silver_messages": messages}).collect()
    }
    chain = {f"a{number}": ("a", number + 1) for number in range(9)}
    circle = dict.fromkeys(("x", "y", "z", "t", "u"), ("x", 0))
    others = {"a": ("a", 0), "b": ("unknown", 0), "c": ("talk", 0), "c1": ("talk", 1)}
    assert found == chain | circle | others
