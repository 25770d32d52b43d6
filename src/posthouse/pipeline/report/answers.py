"""How long agents take to answer: the time from a message to the first reply by another sender, without Spark.

Replies name the message that they answer. Messages and replies are read from silver_messages, a few columns of the
selected days; a reply to a message from before the period counts by its own day.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from posthouse.model.limits import DAY_S, MILLISECOND_NS, SECOND_NS
from posthouse.pipeline.epochs import ALL_LOST, live_through
from posthouse.pipeline.gold_reader import GoldReader, Selection
from posthouse.pipeline.report.figures import SlowAnswer

if TYPE_CHECKING:
    import pyarrow.compute as pc

_SLOWEST = 8
_COLUMNS = ("epoch", "seq", "source", "message_id", "sender", "reply_to", "at_ns")


class Answers(NamedTuple):
    """The times to answer of every agent, in milliseconds, and the slowest answers."""

    times_ms: dict[str, list[float]]
    slowest: tuple[SlowAnswer, ...]


def find_answers(reader: GoldReader) -> Answers:
    """Return the answers of the selected period."""
    import pyarrow.compute as pc

    delta, live = reader.lake.delta("silver_messages"), live_through(reader.lake.epochs())
    replies = delta.to_arrow(_COLUMNS, pc.field("reply_to").is_valid() & _in_period(reader.selection))
    asked_ids = replies.column("reply_to").unique()
    asked = {
        (row["source"], row["message_id"]): row
        for row in delta.to_arrow(_COLUMNS, pc.field("message_id").isin(asked_ids)).to_pylist()
        if row["sender"] is not None and row["seq"] <= live.get(row["epoch"], ALL_LOST)
    }
    times: dict[str, list[float]] = {}
    found: list[SlowAnswer] = []
    first: dict[tuple[str, str, str], int] = {}
    for row in sorted(replies.to_pylist(), key=lambda row: row["at_ns"]):
        question = asked.get((row["source"], row["reply_to"]))
        if question is None or row["sender"] in (None, question["sender"]):
            continue
        key = (row["source"], row["reply_to"], row["sender"])
        if key in first or not reader.is_chosen(row["sender"]):
            continue
        first[key] = row["at_ns"]
        took_ms = (row["at_ns"] - question["at_ns"]) / MILLISECOND_NS
        agent = reader.names(row["sender"])
        times.setdefault(agent, []).append(took_ms)
        found.append(SlowAnswer(agent, reader.names(question["sender"]), took_ms, row["reply_to"]))
    found.sort(key=lambda each: -each.answer_ms)
    return Answers(times, tuple(found[:_SLOWEST]))


def _in_period(selection: Selection) -> pc.Expression:
    """Return the condition that a reply is of the selected days and mesh."""
    import pyarrow.compute as pc

    found = pc.field("at_ns") >= (0 if selection.first_day is None else _start_ns(selection.first_day))
    if selection.last_day is not None:
        found &= pc.field("at_ns") < _start_ns(selection.last_day) + DAY_S * SECOND_NS
    return found if selection.mesh is None else found & (pc.field("mesh") == selection.mesh)


def _start_ns(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * SECOND_NS
