"""Reading frames: events are parsed and verified before anybody sees them, everything in the order it came.

A frame is verified as a whole off the loop; only if that fails is the fault looked for, so that it reaches the
subscription it belongs to and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from posthouse.client.stream.commands import Command, SentEvent, read_event
from posthouse.client.verification import verify_event, verify_events
from posthouse.model.errors import PosthouseError, error


@dataclass(frozen=True, slots=True)
class Forged:
    """An event that does not hold what it claims, and for whom it came."""

    sub: str
    fault: PosthouseError


Item = Command | SentEvent | Forged


async def read_items(commands: Sequence[Command], relay: str, *, is_verifying: bool) -> list[Item]:
    """Return the commands of a frame with their events parsed and, if asked for, verified."""
    items = [_parse(command, relay) for command in commands]
    events = [item for item in items if isinstance(item, SentEvent)]
    if not is_verifying or not events:
        return items
    try:
        await verify_events([item.event for item in events])
    except PosthouseError:
        return [_judge(item) for item in items]
    return items


def _parse(command: Command, relay: str) -> Item:
    if command.verb != "EVENT":
        return command
    try:
        return read_event(command.arguments)
    except PosthouseError as fault:
        return Forged(_sub(command, relay), fault)
    except ValueError as fault:
        raise error("answer_invalid", relay=relay, reason=f"EVENT is malformed: {fault}") from fault


def _judge(item: Item) -> Item:
    if not isinstance(item, SentEvent):
        return item
    try:
        verify_event(item.event)
    except PosthouseError as fault:
        return Forged(item.sub, fault)
    return item


def _sub(command: Command, relay: str) -> str:
    try:
        return msgspec.json.decode(command.arguments[0], type=str)
    except (ValueError, IndexError) as fault:
        raise error("answer_invalid", relay=relay, reason="EVENT without a subscription") from fault
