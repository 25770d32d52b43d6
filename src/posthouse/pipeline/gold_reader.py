"""Figures of a period, mesh or agent, read from the gold tables without Spark, so that reading takes a second.

`posthouse pipeline show` prints them, and the report draws them. A period is a range of whole UTC days. Sums are exact;
a percentile of a period is that of its median hour, weighted by deliveries, because percentiles cannot be added up.
An agent is chosen by its name, its address (`claude@laptop`) or its id; refusals do not name a mesh.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import error
from posthouse.model.usage import Prices
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.party_names import PartyNames, member_names
from posthouse.pipeline.tables.bronze import LOST

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

Row = dict[str, Any]
#: Columns of traffic that count deliveries, by outcome.
OUTCOMES = ("delivered", "waiting", "rejected", "failed", "expired", "blocked", "removed")
#: Outcomes that need an operator's attention.
FAILURES = ("rejected", "failed", "expired")
_AGENT_SUMS = ("sent", "received", *OUTCOMES, "refused", "loops_stopped", "lock_waits", "lock_wait_ms")
_AGENT_LARGEST = ("lock_wait_ms_max", "max_ms")
_AGENT_PERCENTILES = ("p50_ms", "p90_ms", "p99_ms")
CONVERSATION = "conversation"
_TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
_COSTS = ("messages", *_TOKENS, "cost_usd")
_UNPRICED = ("unpriced_input_tokens", "unpriced_cached_tokens", "unpriced_output_tokens")


@dataclass(frozen=True)
class Selection:
    """The part of the history to read; None: all of it."""

    #: UTC days, inclusive, as in 2026-11-15.
    first_day: str | None = None
    last_day: str | None = None
    mesh: str | None = None
    agent: str | None = None

    def before(self, newest_day: str) -> Selection | None:
        """Return the preceding period of the same length; None without a first day."""
        if self.first_day is None:
            return None
        first, last = date.fromisoformat(self.first_day), date.fromisoformat(self.last_day or newest_day)
        length = last - first + timedelta(days=1)
        if length <= timedelta():
            return None
        end = first - timedelta(days=1)
        return replace(self, first_day=(first - length).isoformat(), last_day=end.isoformat())

    def condition(self, *, has_mesh: bool) -> pc.Expression | None:
        """Return the condition on day and mesh for Arrow."""
        import pyarrow.compute as pc

        parts: list[pc.Expression] = []
        if self.first_day is not None:
            parts.append(pc.field("day") >= self.first_day)
        if self.last_day is not None:
            parts.append(pc.field("day") <= self.last_day)
        if has_mesh and self.mesh is not None:
            parts.append(pc.field("mesh") == self.mesh)
        return reduce(operator.and_, parts) if parts else None


class GoldReader:
    """Read the figures of one selection."""

    def __init__(
        self, lake: Lake, selection: Selection, prices: Prices | None = None, names: PartyNames | None = None
    ) -> None:
        self.lake = lake
        self.selection = selection
        self._prices = prices or Prices()
        self._given_names = names
        if selection.agent is not None:
            self._refuse_unknown(selection.agent)
        if selection.mesh is not None:
            self._refuse_unknown_mesh(selection.mesh)

    @cached_property
    def names(self) -> PartyNames:
        """The names of all parties."""
        if self._given_names is not None:
            return self._given_names
        parties = self.lake.delta("gold_agents_hourly").to_arrow(["agent"]).column("agent").unique().to_pylist()
        return PartyNames(member_names(self.lake), parties)

    def of(self, selection: Selection) -> GoldReader:
        """Return a reader for another selection of the same lake."""
        return GoldReader(self.lake, selection, self._prices, self.names)

    def is_chosen(self, party: str) -> bool:
        """Return True if a party is the selected agent, or no agent is selected."""
        agent = self.selection.agent
        name = self.names(party)
        return agent is None or agent in (party, name, name.partition("@")[0])

    def traffic(self) -> list[Row]:
        """Return messages and deliveries by outcome, per day, hour and source."""
        keys = ("day", "hour", "source")
        sums = ("messages", "deliveries", *OUTCOMES)
        if self.selection.agent is None:
            return _sums(self._table("gold_traffic_hourly", (*keys, *sums)), keys, sums)
        rows = self._of_agent(self._table("gold_agents_hourly", (*keys, "agent", "sent", "received", *OUTCOMES)))
        found = _sums(rows, keys, ("sent", "received", *OUTCOMES))
        return [row | {"messages": row["sent"], "deliveries": row["received"]} for row in found]

    def latency(self) -> Iterator[Row]:
        """Yield the percentiles of each hour, source and mesh; of the selected agent if there is one."""
        keys = ("hour", "source", *_AGENT_PERCENTILES)
        if self.selection.agent is None:
            yield from self._table("gold_latency_hourly", (*keys, "deliveries")).to_pylist()
            return
        for row in self._of_agent(self._table("gold_agents_hourly", (*keys, "agent", "delivered"))).to_pylist():
            if row["p50_ms"] is not None:
                yield row | {"deliveries": row["delivered"]}

    def agents(self) -> list[Row]:
        """Return the health of every agent by name, largest traffic first."""
        columns = (*_AGENT_SUMS, *_AGENT_LARGEST, *_AGENT_PERCENTILES)
        found: dict[str, Row] = {}
        weights: dict[str, dict[str, list[tuple[float, int]]]] = {}
        rows = self._table("gold_agents_hourly", ("agent", *columns))
        for row in self._of_agent(rows).to_pylist():
            name = self.names(row["agent"])
            mine = found.setdefault(name, {"agent": name, **dict.fromkeys((*_AGENT_SUMS, *_AGENT_LARGEST), 0)})
            for column in _AGENT_SUMS:
                mine[column] += row[column]
            for column in _AGENT_LARGEST:
                mine[column] = max(mine[column], row[column] or 0)
            for column in _AGENT_PERCENTILES:
                if row[column] is not None:
                    weights.setdefault(name, {}).setdefault(column, []).append((row[column], row["delivered"]))
        for name, mine in found.items():
            mine |= {column: middle(weights.get(name, {}).get(column, ())) for column in _AGENT_PERCENTILES}
        return sorted(found.values(), key=lambda row: (-(row["sent"] + row["received"]), row["agent"]))

    def costs(self, *by: str) -> list[Row]:
        """Return tokens and dollars per day, model, agent, task or conversation, most expensive first.

        The price table gives the cost of tokens that were reported without one.
        """
        keys: tuple[str, ...] = ("day", "agent", "model", "task")
        if CONVERSATION in by:
            keys = (*keys, CONVERSATION)
            table = self._of_agent(self._costs_of_messages())
        else:
            table = self._of_agent(self._table("gold_cost_daily", (*keys, *_COSTS, *_UNPRICED)))
        found: dict[tuple[Any, ...], Row] = {}
        for row in _sums(table, keys, (*_COSTS, *_UNPRICED)):
            tokens = [row[name] for name in _UNPRICED]
            row["cost_usd"] = float(row["cost_usd"]) + (self._prices.cost_usd(row["model"], *tokens) or 0.0)
            named = {name: self.names(row["agent"]) if name == "agent" else row[name] for name in by}
            mine = found.setdefault(tuple(named.values()), named | dict.fromkeys(_COSTS, 0))
            for column in _COSTS:
                mine[column] += row[column]
        return sorted(found.values(), key=lambda row: (-row["cost_usd"], *(str(row[name]) for name in by)))

    def _costs_of_messages(self) -> pa.Table:
        """Return the usage of every message that reports one, with its conversation, which gold does not have."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kept = ("source", "message_id", "day", "agent", "model", "task", "cost_usd", *_TOKENS)
        chosen = self.selection.condition(has_mesh=True)
        reported = pc.field("model").is_valid() & ~pc.field(LOST)
        usage = self.lake.delta("silver_messages").to_arrow(kept, reported if chosen is None else reported & chosen)
        keys = ["source", "message_id"]
        found = self.lake.delta("silver_conversation_messages").to_arrow([*keys, CONVERSATION])
        rows = usage.join(found, keys)
        zero = pa.scalar(0, pa.int64())
        counts = {name: pc.coalesce(rows.column(name), zero) for name in _TOKENS}
        is_unpriced = pc.is_null(rows.column("cost_usd"))
        counts |= {f"unpriced_{name}": pc.if_else(is_unpriced, counts[name], zero) for name in _TOKENS}
        texts = {name: pc.coalesce(rows.column(name), pa.scalar("")) for name in ("agent", "model", "task")}
        return pa.table(
            {
                **{name: rows.column(name) for name in ("day", CONVERSATION)},
                **texts,
                **counts,
                "messages": pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows),
                "cost_usd": pc.coalesce(rows.column("cost_usd"), pa.scalar(0.0)),
            }
        )

    def refusals(self) -> list[Row]:
        """Return the number of refusals per code and key, largest first."""
        rows = _sums(
            self._table("gold_refusals_daily", ("code", "key", "count"), has_mesh=False), ("code", "key"), ("count",)
        )
        kept = [row for row in rows if self.is_chosen(row["key"].partition(" ")[0])]
        return sorted(kept, key=lambda row: (-row["count"], row["key"], row["code"]))

    def contention(self) -> list[Row]:
        """Return the waits for each resource of all agents, longest first; gold does not name the owners of leases."""
        sums = ("grants", "waits", "wait_ms", "take_overs", "held_ms")
        table = self._table("gold_contention_hourly", ("resource", *sums, "wait_ms_max"))
        rows = _sums(table, ("resource",), sums, ("wait_ms_max",))
        return sorted(rows, key=lambda row: (-row["wait_ms"], -row["grants"], row["resource"]))

    def pairs(self) -> list[Row]:
        """Return deliveries per source, sender and recipient by name, largest first."""
        keys = ("source", "sender", "recipient")
        found: dict[tuple[str, str, str], int] = {}
        for row in _sums(self._table("gold_who_talks_to_whom", (*keys, "deliveries")), keys, ("deliveries",)):
            if self.is_chosen(row["sender"]) or self.is_chosen(row["recipient"]):
                named = (row["source"], self.names(row["sender"]), self.names(row["recipient"]))
                found[named] = found.get(named, 0) + row["deliveries"]
        rows = [dict(zip((*keys, "deliveries"), (*key, count), strict=True)) for key, count in found.items()]
        return sorted(rows, key=lambda row: (-row["deliveries"], row["sender"], row["recipient"]))

    def _table(self, name: str, columns: Sequence[str], *, has_mesh: bool = True) -> pa.Table:
        table = self.lake.delta(name)
        if not table.exists and self.lake.delta("bronze_journal").exists:  # there is history, but no figures of it yet
            raise error("lake_outdated", path=self.lake.location, table=name)
        return table.to_arrow(list(columns), self.selection.condition(has_mesh=has_mesh))

    def _of_agent(self, table: pa.Table, column: str = "agent") -> pa.Table:
        if self.selection.agent is None:
            return table
        import pyarrow as pa
        import pyarrow.compute as pc

        parties = [party for party in table.column(column).unique().to_pylist() if self.is_chosen(party)]
        return table.filter(pc.is_in(table.column(column), pa.array(parties, pa.string())))

    def _refuse_unknown(self, agent: str) -> None:
        parties = self.lake.delta("gold_agents_hourly").to_arrow(["agent"]).column("agent").unique().to_pylist()
        if any(self.is_chosen(party) for party in parties):
            return
        known = sorted({self.names(party) for party in parties})
        near = difflib.get_close_matches(agent, known, 3) or known[:5]
        hint = f"Agents in the lake: {', '.join(near)}." if near else "The lake has no agent yet."
        raise error("usage", text=f"the lake has no agent {agent!r}", hint=hint)

    def _refuse_unknown_mesh(self, mesh: str) -> None:
        meshes = self.lake.delta("gold_traffic_hourly").to_arrow(["mesh"]).column("mesh").unique().drop_null()
        known = sorted(filter(None, meshes.to_pylist()))  # rows of outboxes, inboxes and the bus have none
        if mesh not in known:
            hint = f"Meshes in the lake: {', '.join(known)}." if known else "The lake has no message of a mesh yet."
            raise error("usage", text=f"the lake has no mesh {mesh!r}", hint=hint)


def middle(values: Iterable[tuple[float, int]]) -> float | None:
    """Return the weighted median of (value, weight) pairs; quiet nights would distort a mean of hours."""
    ordered = sorted(pair for pair in values if pair[1] > 0)
    half = sum(weight for _, weight in ordered) / 2
    seen = 0
    for value, weight in ordered:
        seen += weight
        if seen >= half:
            return value
    return None


def _sums(table: pa.Table, keys: Sequence[str], sums: Sequence[str], largest: Sequence[str] = ()) -> list[Row]:
    """Return the sums and maxima of columns per key."""
    if not table.num_rows:
        return []
    wanted = [(name, "sum") for name in sums] + [(name, "max") for name in largest]
    grouped = table.group_by(list(keys)).aggregate(wanted)
    names = {f"{name}_{how}": name for name, how in wanted}
    return [{names.get(name, name): value for name, value in row.items()} for row in grouped.to_pylist()]
