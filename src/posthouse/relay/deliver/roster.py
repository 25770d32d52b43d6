"""The roster of a mesh: its members, who of them has an open mailbox, and what their profiles say of their status."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from posthouse.model.event import Event
from posthouse.relay.meshes.registry import Mesh

MAX_PROFILES = 10_000  # looked at for one roster: as many as a mesh lists members
_event = msgspec.json.Decoder(Event).decode
_profile = msgspec.json.Decoder(dict[str, Any]).decode


def statuses(profiles: Iterable[bytes]) -> dict[str, str]:
    """Return the status in each profile that has one, by node; a profile that cannot be read has none."""
    found: dict[str, str] = {}
    for raw in profiles:
        event = _event(raw)
        try:
            status = _profile(event.content).get("status")
        except msgspec.DecodeError:
            continue
        if isinstance(status, str):
            found[event.pubkey] = status
    return found


def roster(mesh: Mesh, online: Collection[str], status: dict[str, str]) -> list[dict[str, Any]]:
    """Return the members by name, then whoever else is online."""
    listed = sorted(mesh.members.values(), key=lambda member: member.name)
    entries = [_entry(each.node, each.name, each.role.value, online, status) for each in listed]
    others = sorted(node for node in online if node not in mesh.members)
    return entries + [_entry(node, None, mesh.role(node), online, status) for node in others]


def _entry(
    node: str, name: str | None, role: str | None, online: Collection[str], status: dict[str, str]
) -> dict[str, Any]:
    return {"node": node, "name": name, "role": role, "online": node in online, "status": status.get(node)}
