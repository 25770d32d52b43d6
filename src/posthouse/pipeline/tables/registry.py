"""Every table of the lake above bronze, in the order in which they are made: inputs before what is made of them."""

from __future__ import annotations

from types import MappingProxyType

from posthouse.pipeline.tables.gold import (
    contention_hourly,
    cost_daily,
    latency_hourly,
    refusals_daily,
    traffic_hourly,
    who_talks_to_whom,
)
from posthouse.pipeline.tables.silver import conversations, deliveries, inbox, leases, messages, outbox, refusals
from posthouse.pipeline.tables.table import BRONZE, Table


def in_order(*declared: Table) -> tuple[Table, ...]:
    """Return the tables unchanged; refuse a name twice, or an input that is not made before."""
    known = set(BRONZE)
    for table in declared:
        if table.name in known:
            raise ValueError(f"the table {table.name} is declared twice")
        if missing := set(table.inputs) - known:
            raise ValueError(f"the table {table.name} comes before its inputs {sorted(missing)}")
        known.add(table.name)
    return declared


TABLES = in_order(
    messages.TABLE,
    deliveries.TABLE,
    leases.TABLE,
    refusals.TABLE,
    outbox.TABLE,
    inbox.TABLE,
    conversations.TABLE,
    traffic_hourly.TABLE,
    latency_hourly.TABLE,
    cost_daily.TABLE,
    refusals_daily.TABLE,
    contention_hourly.TABLE,
    who_talks_to_whom.TABLE,
)
BY_NAME = MappingProxyType({table.name: table for table in TABLES})
