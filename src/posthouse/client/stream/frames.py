"""Frames of the stream: commands encoded, decoded and, where they carry an event, verified.

A frame is one JSON array with a verb in front, or an array of such arrays. Arguments stay bytes until the code for
their verb decodes them, so an event is parsed once, strictly. All events of a frame are verified together; only if
that fails is each one checked, so that a fault reaches the subscription or mailbox it belongs to and no other. The
order of the commands is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from posthouse.client.trust.signing import verify_event, verify_events
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event, decode_event, encode_event, is_event_id

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_LISTS = msgspec.json.Decoder(list[list[msgspec.Raw]])
_TEXT = msgspec.json.Decoder(str)
_EVENT_SEQ = msgspec.json.Decoder(int | None)
_encode = msgspec.json.Encoder().encode


class Command(NamedTuple):
    """One command: its verb and its arguments as JSON."""

    verb: str
    arguments: Sequence[msgspec.Raw]


class EventCommand(NamedTuple):
    """The arguments of EVENT from a relay."""

    sub: str
    event: Event
    #: None for an ephemeral event
    seq: int | None
    #: bytes of the event's JSON
    size: int


def read_frame(data: str | bytes) -> list[Command]:
    """Return the commands of a frame in order; ValueError when it is none."""
    outer = _ARRAY.decode(data)
    if outer and bytes(outer[0])[:1] == b"[":
        return [_command(parts) for parts in _LISTS.decode(data)]
    return [_command(outer)]


def read_event(arguments: Sequence[msgspec.Raw]) -> EventCommand:
    """Return what an EVENT command carries; ValueError or the error of the event when it is none."""
    if len(arguments) != 3:
        raise ValueError("EVENT has not three arguments")
    raw = bytes(arguments[1])
    return EventCommand(_TEXT.decode(arguments[0]), decode_event(raw), _EVENT_SEQ.decode(arguments[2]), len(raw))


def value_of(argument: msgspec.Raw) -> Any:
    """Return an argument as plain JSON values."""
    return msgspec.json.decode(argument)


def text_of(argument: msgspec.Raw) -> str:
    """Return an argument that is a text; ValueError when it is none."""
    return _TEXT.decode(argument)


def write_command(*parts: Any) -> bytes:
    """Return one command as JSON."""
    return _encode(parts)


def write_event(verb: str, event: Event) -> bytes:
    """Return a command whose one argument is an event."""
    return b'["%b",%b]' % (verb.encode(), encode_event(event))


def _command(parts: Sequence[msgspec.Raw]) -> Command:
    if not parts:
        raise ValueError("an empty array is no command")
    return Command(_TEXT.decode(parts[0]), parts[1:])


class DeliveryInfo(msgspec.Struct, frozen=True):
    """What a relay says of a delivery."""

    was_stored: bool
    attempt: int


class ConfirmedItem(msgspec.Struct, frozen=True):
    """What became of one message, as the relay says."""

    id: str
    was_stored: bool
    at_ns: int


class DeliverCommand(NamedTuple):
    """The arguments of DELIVER."""

    seq: int
    event: Event
    about: DeliveryInfo


class ConfirmedCommand(NamedTuple):
    """The arguments of CONFIRMED."""

    items: tuple[ConfirmedItem, ...]
    event: Event


@dataclass(frozen=True, slots=True)
class InvalidMessage:
    """Mail with an event that does not hold what it claims."""

    #: the id it claims, of a delivery; None of anything else
    delivery_id: str | None
    fault: PosthouseError


MessageCommand = DeliverCommand | ConfirmedCommand
_DELIVERY_SEQ = msgspec.json.Decoder(int)
_DELIVERY_INFO = msgspec.json.Decoder(DeliveryInfo)
_ITEMS = msgspec.json.Decoder(tuple[ConfirmedItem, ...])


class _Claimed(msgspec.Struct):
    id: str


_CLAIMED = msgspec.json.Decoder(_Claimed)


def read_delivery(arguments: Sequence[msgspec.Raw]) -> DeliverCommand:
    """Return what a DELIVER command carries; ValueError or the error of the event when it is none."""
    seq, event, about = arguments
    return DeliverCommand(_DELIVERY_SEQ.decode(seq), decode_event(event), _DELIVERY_INFO.decode(about))


def read_confirmed(arguments: Sequence[msgspec.Raw]) -> ConfirmedCommand:
    """Return what a CONFIRMED command carries; ValueError or the error of the event when it is none."""
    items, event = arguments
    return ConfirmedCommand(_ITEMS.decode(items), decode_event(event))


def invalid_message(verb: str, arguments: Sequence[msgspec.Raw], fault: PosthouseError) -> InvalidMessage:
    """Return what is left of mail whose event cannot be believed."""
    return InvalidMessage(_claimed_id(arguments[1]) if verb == "DELIVER" else None, fault)


def _claimed_id(event: msgspec.Raw) -> str | None:
    try:
        claimed = _CLAIMED.decode(event).id
    except ValueError:
        return None
    return claimed if is_event_id(claimed) else None


#: verb -> how its arguments are read
MESSAGE_READERS: Mapping[str, Callable[[Sequence[msgspec.Raw]], MessageCommand]] = {
    "DELIVER": read_delivery,
    "CONFIRMED": read_confirmed,
}


@dataclass(frozen=True, slots=True)
class InvalidEvent:
    """An event that does not hold what it claims, and for whom it came."""

    sub: str
    fault: PosthouseError


Item = Command | EventCommand | InvalidEvent | MessageCommand | InvalidMessage
_CARRIERS = (EventCommand, DeliverCommand, ConfirmedCommand)


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
        return [_verify_item(item) for item in items]
    return items


def _parse(command: Command, relay: str) -> Item:
    mail_reader = MESSAGE_READERS.get(command.verb)
    if mail_reader is None and command.verb != "EVENT":
        return command
    try:
        return read_event(command.arguments) if mail_reader is None else mail_reader(command.arguments)
    except PosthouseError as fault:
        if mail_reader is None:
            return InvalidEvent(_sub(command, relay), fault)
        return invalid_message(command.verb, command.arguments, fault)
    except ValueError as fault:
        reason = f"{command.verb} is malformed: {fault}"
        raise error("answer_invalid", relay=relay, reason=reason) from fault


def _verify_item(item: Item) -> Item:
    if not isinstance(item, _CARRIERS):
        return item
    try:
        verify_event(item.event)
    except PosthouseError as fault:
        if isinstance(item, EventCommand):
            return InvalidEvent(item.sub, fault)
        return InvalidMessage(item.event.id if isinstance(item, DeliverCommand) else None, fault)
    return item


def _sub(command: Command, relay: str) -> str:
    try:
        return msgspec.json.decode(command.arguments[0], type=str)
    except (ValueError, IndexError) as fault:
        raise error("answer_invalid", relay=relay, reason="EVENT without a subscription") from fault
