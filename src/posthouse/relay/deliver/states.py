"""Where a message is: its state per recipient, as far as who asks may see.

The sender and admins of the mesh see all recipients, a recipient itself alone. A block must not show: to the sender a
blocked row looks like one that waits, and later like one that waited too long.
"""

from __future__ import annotations

from typing import Any

from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.relay.deliver.rows import OPEN, State
from posthouse.relay.deliver.settings import DeliverySettings
from posthouse.relay.meshes.registry import Meshes
from posthouse.relay.meshes.rights import Right
from posthouse.relay.store.interface import RelayStore


class States:
    """States of messages, for whoever may see them."""

    def __init__(self, store: RelayStore, meshes: Meshes, clock: Clock, settings: DeliverySettings) -> None:
        self._store = store
        self._meshes = meshes
        self._clock = clock
        self._settings = settings

    async def message(self, node: str, message_id: str) -> dict[str, Any]:
        """Return a message's record and states, or raise message_unknown."""
        found = await self._store.deliveries.message(message_id, None)
        if found is None:
            raise error("message_unknown", id=message_id)
        rights = self._meshes.rights(node, found["mesh"])
        if node != found["sender"] and Right.ADMINISTER not in rights:
            found["deliveries"] = [each for each in found["deliveries"] if each["recipient"] == node]
            if not found["deliveries"] or Right.READ not in rights:
                raise error("message_unknown", id=message_id)
        for delivery in found["deliveries"]:
            self._show(delivery, is_sender=node == found["sender"])
        return {"id": message_id} | found

    def _show(self, delivery: dict[str, Any], *, is_sender: bool) -> None:
        is_old = self._clock.wall_ns() - delivery["queued_at_ns"] > self._settings.queue_ttl_ns
        if is_sender and delivery["state"] == State.BLOCKED:
            delivery |= {
                "state": State.QUEUED,
                "closed_at_ns": None,
                "was_stored": None,
                "attempts": 0,
                "sent_at_ns": None,
            }
        if is_old and delivery["state"] in OPEN:
            delivery["state"] = State.EXPIRED
