"""One name per agent: the names under which people know the senders and recipients of bus, host and relay.

An agent appears in the lake as a node of a mesh (`ed25519:KEY`), as an agent of a node (`ed25519:KEY/claude`), as an
endpoint of a bus (`agents.claude`), and in subjects of the bridge between them (`mesh.M.member.KEY.claude`). All of
them become `claude@laptop`, where the member's latest name is laptop; a node is its name, or the beginning of its key.
An endpoint belongs to the only node that has an agent of its name, or has that name itself; if several nodes do, or
none does, it keeps its own name. Names are looked up when figures are read: they are not stored, because they change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from posthouse.pipeline.lake import Lake

_NODE = re.compile(r"ed25519:([0-9a-f]{64})(?:/([a-z0-9][a-z0-9-]*))?")
_BRIDGED = re.compile(r"mesh\.[^.]+\.(?:member|out\.dm)\.([0-9a-f]{64})(?:\.([a-z0-9][a-z0-9-]*))?")
_ENDPOINT = re.compile(r"agents\.([^.]+)(?:\.inbox)?")
_KEY_DIGITS = 8
_MEMBER_RECORDS = ("member.joined", "member.changed")


class PartyNames:
    """Map parties of messages to the names that people read."""

    def __init__(self, members: Mapping[str, str], parties: Iterable[str] = ()) -> None:
        self._members = members
        hosts: dict[str, set[str]] = {}
        for party in parties:
            key, agent = self._parts(party)
            if agent:
                hosts.setdefault(agent, set()).add(key)
        for node, name in members.items():
            hosts.setdefault(name, set()).add(f"{node.removeprefix('ed25519:')}/")
        self._homes = {agent: next(iter(keys)) for agent, keys in hosts.items() if len(keys) == 1}

    def __call__(self, party: str) -> str:
        """Return the name of a party; any other text is its own name."""
        key, agent = self._parts(party)
        if key:
            return self._named(key, agent)
        if found := _ENDPOINT.fullmatch(party):
            home = self._homes.get(found[1])
            if home is None:
                return found[1]
            return found[1] if home.endswith("/") else self._named(home, found[1])
        return party

    def _named(self, key: str, agent: str) -> str:
        host = self._members.get(f"ed25519:{key}") or f"{key[:_KEY_DIGITS]}…"
        return f"{agent}@{host}" if agent else host

    @staticmethod
    def _parts(party: str) -> tuple[str, str]:
        """Return the key and the agent in a party, "" for a part that is missing."""
        found = _NODE.fullmatch(party) or _BRIDGED.fullmatch(party)
        return (found[1], found[2] or "") if found else ("", "")


def member_names(lake: Lake) -> dict[str, str]:
    """Return the latest name of every member that has one, by node id; reads bronze without Spark.

    Member records are rare, so bodies are read only from row groups that contain one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from posthouse.pipeline.lake.lake import BronzeScan, RowFilter

    found: dict[str, tuple[int, str]] = {}
    types = pa.array(_MEMBER_RECORDS)
    storage = lake.delta("bronze_journal").storage
    for path in BronzeScan(lake, "bronze_journal").paths(RowFilter()):
        file = pq.ParquetFile(storage.full_path(path), filesystem=storage.filesystem())
        for group in range(file.num_row_groups):
            is_wanted = pc.is_in(file.read_row_group(group, ["type"]).column("type"), types)
            if not pc.any(is_wanted).as_py():
                continue
            rows = file.read_row_group(group, ["at_ns", "ref", "body"]).filter(is_wanted)
            for at_ns, node, body in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                name = msgspec.json.decode(body or "{}").get("name")
                if name and at_ns >= found.get(node, (0, ""))[0]:
                    found[node] = (at_ns, name)
    return {node: name for node, (_, name) in found.items()}
