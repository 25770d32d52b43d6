"""The catalog: every table of the lake above bronze, in the order in which a run derives them.

Inputs precede the tables derived from them. Importing this module fails if a name is declared twice or an input is
missing. To add a table: 1. a file with the table's name, 2. TABLES here, 3. docs/explain/pipeline.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from posthouse.pipeline.tables import (
    gold_agents_hourly,
    gold_contention_hourly,
    gold_cost_daily,
    gold_latency_hourly,
    gold_refusals_daily,
    gold_traffic_hourly,
    gold_who_talks_to_whom,
    silver_conversation_messages,
    silver_conversations,
    silver_deliveries,
    silver_inbox,
    silver_leases,
    silver_messages,
    silver_outbox,
    silver_refusals,
)
from posthouse.pipeline.tables.declaration import BRONZE, Table


def levels(tables: Sequence[Table]) -> list[list[Table]]:
    """Group tables so that the tables of a group depend only on earlier groups."""
    depths: dict[str, int] = {}
    found: list[list[Table]] = []
    for table in tables:
        depth = max((depths.get(name, -1) + 1 for name in table.inputs), default=0)
        depths[table.name] = depth
        found += [[] for _ in range(depth + 1 - len(found))]
        found[depth].append(table)
    return found


def in_order(*declared: Table) -> tuple[Table, ...]:
    """Return the tables unchanged; raise ValueError for a repeated name or an input that is not declared before."""
    known = set(BRONZE)
    for table in declared:
        if table.name in known:
            raise ValueError(f"the table {table.name} is declared twice")
        if missing := set(table.inputs) - known:
            raise ValueError(f"the table {table.name} is declared before its inputs {sorted(missing)}")
        known.add(table.name)
    return declared


_FOLDED = (silver_messages, silver_deliveries, silver_leases, silver_refusals, silver_outbox, silver_inbox)
TABLES = in_order(
    *(module.FACTS for module in _FOLDED),
    *(module.TABLE for module in _FOLDED),
    silver_conversation_messages.TABLE,
    silver_conversations.TABLE,
    gold_traffic_hourly.TABLE,
    gold_agents_hourly.TABLE,
    gold_latency_hourly.TABLE,
    gold_cost_daily.TABLE,
    gold_refusals_daily.TABLE,
    gold_contention_hourly.TABLE,
    gold_who_talks_to_whom.TABLE,
)
BY_NAME = MappingProxyType({table.name: table for table in TABLES})
