"""Publishing what came over the mesh: under the budget it travels with, and exempt from the rate limit.

For the daemon's bridge alone. The mesh has its own bounds for hops, calls and time, and its senders were rated at
their relay; everything else (access, back-pressure, breaker) holds as for any publish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.draft import Draft
from posthouse.bus.publish import Reserve
from posthouse.bus.results import PublishResult
from posthouse.model.envelope import json_payload
from posthouse.model.mesh_budget import MESH_CEILING, MeshBudget, to_bus_budget
from posthouse.model.subjects import validate_subject

if TYPE_CHECKING:
    from posthouse.bus.bus import Bus


async def publish_bridged(
    bus: Bus, subject: str, payload: Any, *, from_: str, budget: MeshBudget, reply_to: str | None = None
) -> PublishResult:
    """Store a message from the mesh in every mailbox its subject reaches."""
    session = bus.session
    for name in (subject, from_, *(() if reply_to is None else (reply_to,))):
        validate_subject(name)
    raw = msgspec.Raw(msgspec.json.encode(json_payload(payload)))
    future = session.loop.create_future()
    given = to_bus_budget(budget)
    draft = Draft(subject, raw, from_, future, reply_to=reply_to, given=given, ceiling=MESH_CEILING)
    session.ledger.submit(Reserve(session, draft))
    result: PublishResult = await future
    return result
