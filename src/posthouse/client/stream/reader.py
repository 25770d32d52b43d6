"""Reading frames: events are parsed and verified before anybody sees them, everything in the order it came.

A frame is verified as a whole off the loop; only if that fails is the fault looked for, so that it reaches the
subscription or the mailbox it belongs to and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from posthouse.client.stream.commands import Command, SentEvent, read_event
from posthouse.client.stream.mail import (
    MAIL_READERS,
    ForgedMail,
    SentConfirmed,
    SentDelivery,
    SentMail,
    forged_mail,
)
from posthouse.client.verification import verify_event, verify_events
from posthouse.model.errors import PosthouseError, error


@dataclass(frozen=True, slots=True)
class Forged:
    """An event that does not hold what it claims, and for whom it came."""

    sub: str
    fault: PosthouseError


Item = Command | SentEvent | Forged | SentMail | ForgedMail
_CARRIERS = (SentEvent, SentDelivery, SentConfirmed)


async def read_items(commands: Sequence[Command], relay: str, *, is_verifying: bool) -> list[Item]:
    """Return the commands of a frame with their events parsed and, if asked for, verified."""
    items = [_parse(command, relay) for command in commands]
    if not is_verifying:
        return items
    events = [item.event for item in items if isinstance(item, _CARRIERS)]
    if not events:
        return items
    try:
        await verify_events(events)
    except PosthouseError:
        return [_judge(item) for item in items]
    return items


def _parse(command: Command, relay: str) -> Item:
    mail_reader = MAIL_READERS.get(command.verb)
    if mail_reader is None and command.verb != "EVENT":
        return command
    try:
        return read_event(command.arguments) if mail_reader is None else mail_reader(command.arguments)
    except PosthouseError as fault:
        if mail_reader is None:
            return Forged(_sub(command, relay), fault)
        return forged_mail(command.verb, command.arguments, fault)
    except ValueError as fault:
        reason = f"{command.verb} is malformed: {fault}"
        raise error("answer_invalid", relay=relay, reason=reason) from fault


def _judge(item: Item) -> Item:
    if not isinstance(item, _CARRIERS):
        return item
    try:
        verify_event(item.event)
    except PosthouseError as fault:
        if isinstance(item, SentEvent):
            return Forged(item.sub, fault)
        return ForgedMail(item.event.id if isinstance(item, SentDelivery) else None, fault)
    return item


def _sub(command: Command, relay: str) -> str:
    try:
        return msgspec.json.decode(command.arguments[0], type=str)
    except (ValueError, IndexError) as fault:
        raise error("answer_invalid", relay=relay, reason="EVENT without a subscription") from fault
