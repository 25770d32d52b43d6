"""What the lake of this host remembers of a message that its relay has pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posthouse.model.event_structure import is_event_id

if TYPE_CHECKING:
    from posthouse.journal.record import Record


def remembered(message_id: str, relay: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the states of a message as the lake knows them, or what the relay still said of it."""
    from posthouse.cli.memory import find_memory

    memory = find_memory() if is_event_id(message_id) else None
    if memory is None:
        return relay
    return memory.states(message_id, None if relay is None else relay["first_seen_at_ns"]) or relay


def remembered_on_bus(event_id: str, bus_id: str | None) -> list[Record]:
    """Return the records of buses about a message, none when there is no lake."""
    from posthouse.cli.memory import find_memory

    memory = find_memory()
    return [] if memory is None else memory.bus_records(event_id, bus_id)
