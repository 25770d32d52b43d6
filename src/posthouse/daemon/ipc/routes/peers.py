"""GET /v1/peers and POST /v1/profile: who is here, and what this node says of itself."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.client import Client
from posthouse.daemon.ipc.call import Call
from posthouse.model.coordinate import Coordinate
from posthouse.model.errors import PosthouseError
from posthouse.model.kinds import PROFILE


class _Profile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    summary: str | None = None
    status: Literal["idle", "working", "dnd"] | None = None
    visible: bool | None = None
    avatar: str | None = None
    title: str | None = None
    bio: str | None = None
    capabilities: list[str] | None = None


async def peers(call: Call) -> Answer:
    """Return the members with who is online; without the relay as last heard."""
    daemon = call.daemon
    await daemon.uplink.freshen()
    online = daemon.uplink.online
    listed = {member.node: {"name": member.name, "role": member.role} for member in daemon.roster.members}
    for node, entry in online.items():
        listed.setdefault(node, {"name": entry.name, "role": entry.role})
    shown = [
        {"node": node, **about, **_presence(online.get(node)), "is_self": node == daemon.key.node}
        for node, about in listed.items()
    ]
    return json_answer({"peers": shown, "mesh": daemon.settings.mesh, "is_cached": not daemon.uplink.is_up})


async def profile(call: Call) -> Answer:
    """Change what this node says of itself; fields that are not given stay."""
    given = msgspec.to_builtins(await call.body(_Profile))
    client = call.daemon.uplink.client
    applied = await _present(client) | given
    await client.publish(msgspec.json.encode(applied).decode(), kind=PROFILE, mesh=call.daemon.settings.mesh)
    return json_answer({"applied": applied})


async def _present(client: Client) -> dict[str, Any]:
    try:
        stored = await client.address(Coordinate(PROFILE, client.key.node, ""))
        value = msgspec.json.decode(stored.event.content)
    except PosthouseError as failure:
        if failure.code != "address_unknown":
            raise
        return {}
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _presence(entry: Any) -> dict[str, Any]:
    return {"online": entry is not None and entry.online, "status": None if entry is None else entry.status}
