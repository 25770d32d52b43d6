"""Frames of the stream: commands to the relay encoded, commands from the relay decoded and verified.

A frame is one JSON array with a verb in front, or an array of such arrays. Each verb has one struct, and decoding a
frame checks every field against it, so the code that handles a command never gets a malformed one: such a frame raises
answer_invalid here, which ends the stream. A verb without a struct comes from a newer relay and is skipped.

An event inside a command is different: other nodes wrote it. An event with a wrong form, id or signature becomes an
InvalidEvent or InvalidMessage, so the error reaches the one subscription or mailbox it concerns. Commands keep their
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from posthouse.client.trust.signing import verification_errors
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event, decode_event, is_event_id
from posthouse.model.message_api import ConfirmedItem
from posthouse.model.profile import AgentProfile

_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


def write_command(*parts: Any) -> bytes:
    """Return one command as JSON: the verb, then its arguments."""
    return _encode(parts)


class Hello(msgspec.Struct, array_like=True, frozen=True, tag="HELLO"):
    """The relay's greeting: its node id, its challenge and its features."""

    info: dict[str, Any]


class Authed(msgspec.Struct, array_like=True, frozen=True, tag="AUTHED"):
    """The relay accepts the proof of this node's key."""

    info: dict[str, Any]


class Notice(msgspec.Struct, array_like=True, frozen=True, tag="NOTICE"):
    """A refusal that belongs to no request id."""

    code: str
    text: str


class OkAnswer(msgspec.Struct, array_like=True, frozen=True, tag="OK"):
    """The answer to EVENT, CONFIRM or REJECT: a result, or a problem if it was refused."""

    #: id of the event or message; None if the relay could not read one
    id: str | None
    is_accepted: bool
    body: dict[str, Any]


class LockAnswer(msgspec.Struct, array_like=True, frozen=True, tag="LOCKED"):
    """The answer to LOCK: a result, or a problem, which has a code."""

    request: str
    body: dict[str, Any]


class EndOfStored(msgspec.Struct, array_like=True, frozen=True, tag="EOSE"):
    """A subscription has sent every stored event up to the cursor; live events follow."""

    sub: str
    cursor: str | None


class Closed(msgspec.Struct, array_like=True, frozen=True, tag="CLOSED"):
    """The relay has closed a subscription."""

    sub: str
    problem: dict[str, Any] | None
    cursor: str | None


class QueueStatus(msgspec.Struct, array_like=True, frozen=True, tag="QUEUE_STATUS"):
    """How many messages waited when the mailbox was opened."""

    waiting: int


class RosterEntry(msgspec.Struct, frozen=True):
    """A member of the mesh, as the relay sees it."""

    node: str
    name: str | None = None
    role: str | None = None
    online: bool = False
    #: from the member's profile
    status: str | None = None
    #: from the member's profile; None if it lists none, or if the roster had no room for them
    agents: tuple[AgentProfile, ...] | None = None
    #: names of the agents that are online
    online_agents: tuple[str, ...] = ()


class Roster(msgspec.Struct, array_like=True, frozen=True, tag="ROSTER"):
    """The answer to RECEIVE: the members of the mesh."""

    mesh: str
    entries: list[RosterEntry]


class PresenceChange(msgspec.Struct, array_like=True, frozen=True, tag="PRESENCE"):
    """A node came online or went offline."""

    mesh: str
    node: str
    #: online or offline
    state: str
    #: names of its agents that are online
    agents: tuple[str, ...] = ()


class ProfileEntry(msgspec.Struct, frozen=True):
    """The part of a member's profile that the relay shows."""

    node: str
    status: str | None = None
    agents: tuple[AgentProfile, ...] | None = None


class ProfileChange(msgspec.Struct, array_like=True, frozen=True, tag="PROFILE"):
    """A member published a profile."""

    mesh: str
    profile: ProfileEntry


class Gap(msgspec.Struct, frozen=True):
    """Messages of a topic that this node's queue had no room for."""

    topic: str
    #: of the topic's history: the first missing message is after it
    cursor: str
    #: of the last of them
    last_seq: int
    #: how many
    messages: int


class GapNotice(msgspec.Struct, array_like=True, frozen=True, tag="GAP"):
    """The gaps of this node."""

    mesh: str
    gaps: tuple[Gap, ...]


class DeliveryInfo(msgspec.Struct, frozen=True):
    """The relay's data about one delivery."""

    was_stored: bool
    attempt: int


class SubscribedEvent(NamedTuple):
    """An event for a subscription."""

    sub: str
    event: Event
    #: None for an ephemeral event
    seq: int | None
    #: bytes of the event's JSON
    size: int
    #: an admin revoked its key, and it was signed or accepted after the time from which the key is not trusted
    is_suspect: bool = False


class InvalidEvent(NamedTuple):
    """An event for a subscription that does not verify."""

    sub: str
    error: PosthouseError


class DeliveredMessage(NamedTuple):
    """A message for the open mailbox."""

    seq: int
    event: Event
    info: DeliveryInfo


class ConfirmedMessages(NamedTuple):
    """A confirmation of messages that this node sent."""

    items: tuple[ConfirmedItem, ...]
    event: Event


class ReceiptCommandItem(msgspec.Struct, frozen=True):
    """One message in a receipt."""

    id: str


class ReceivedReceipt(NamedTuple):
    """A receipt of messages that this node sent."""

    items: tuple[ReceiptCommandItem, ...]
    event: Event


class InvalidMessage(NamedTuple):
    """A message, confirmation or receipt whose event does not verify."""

    #: the id that a delivery claims, if it has the form of one; None for a confirmation
    delivery_id: str | None
    error: PosthouseError


class _EventMark(msgspec.Struct):
    suspect: bool = False


class _EventCommand(msgspec.Struct, array_like=True, tag="EVENT"):
    sub: str
    event: msgspec.Raw
    seq: int | None
    mark: _EventMark | None = None

    def decode(self) -> SubscribedEvent | InvalidEvent:
        try:
            is_suspect = self.mark is not None and self.mark.suspect
            return SubscribedEvent(self.sub, decode_event(self.event), self.seq, len(bytes(self.event)), is_suspect)
        except PosthouseError as invalid:
            return InvalidEvent(self.sub, invalid)


class _DeliverCommand(msgspec.Struct, array_like=True, tag="DELIVER"):
    seq: int
    event: msgspec.Raw
    info: DeliveryInfo

    def decode(self) -> DeliveredMessage | InvalidMessage:
        try:
            return DeliveredMessage(self.seq, decode_event(self.event), self.info)
        except PosthouseError as invalid:
            return InvalidMessage(_claimed_id(self.event), invalid)


class _ConfirmedCommand(msgspec.Struct, array_like=True, tag="CONFIRMED"):
    items: tuple[ConfirmedItem, ...]
    event: msgspec.Raw

    def decode(self) -> ConfirmedMessages | InvalidMessage:
        try:
            return ConfirmedMessages(self.items, decode_event(self.event))
        except PosthouseError as invalid:
            return InvalidMessage(None, invalid)


class _ReceiptCommand(msgspec.Struct, array_like=True, tag="RECEIPT"):
    items: tuple[ReceiptCommandItem, ...]
    event: msgspec.Raw

    def decode(self) -> ReceivedReceipt | InvalidMessage:
        try:
            return ReceivedReceipt(self.items, decode_event(self.event))
        except PosthouseError as invalid:
            return InvalidMessage(None, invalid)


class _Claimed(msgspec.Struct):
    id: str


def _claimed_id(event: msgspec.Raw) -> str | None:
    try:
        claimed = msgspec.json.decode(event, type=_Claimed).id
    except ValueError:
        return None
    return claimed if is_event_id(claimed) else None


_Plain = (
    Hello | Authed | Notice | OkAnswer | LockAnswer | EndOfStored | Closed | QueueStatus | Roster | PresenceChange
    | ProfileChange | GapNotice
)  # fmt: skip
_WithEvent = _EventCommand | _DeliverCommand | _ConfirmedCommand | _ReceiptCommand
#: a command from the relay, decoded
Command = (
    _Plain | SubscribedEvent | InvalidEvent | DeliveredMessage | ConfirmedMessages | ReceivedReceipt | InvalidMessage
)

_ONE_COMMAND = '["'  # how a frame begins that is no list of commands, unless it has white space
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_VERB = msgspec.json.Decoder(str)
_COMMAND: msgspec.json.Decoder[_Plain | _WithEvent] = msgspec.json.Decoder(_Plain | _WithEvent)
_KNOWN_VERBS = frozenset(
    {"HELLO", "AUTHED", "NOTICE", "OK", "LOCKED", "EOSE", "CLOSED", "QUEUE_STATUS", "ROSTER", "PRESENCE"}
    | {"EVENT", "DELIVER", "CONFIRMED", "RECEIPT", "PROFILE", "GAP"}
)
_CARRIERS = (SubscribedEvent, DeliveredMessage, ConfirmedMessages, ReceivedReceipt)


async def read_frame(data: str, relay: str, *, is_verifying: bool) -> list[Command]:
    """Return the commands of a frame in order, or raise answer_invalid; `relay` names the relay in the error."""
    commands = decode_frame(data, relay)
    events: list[Event] = []
    for command in commands:
        if isinstance(command, _CARRIERS):
            events.append(command.event)
    if not events or not is_verifying:
        return commands
    errors = await verification_errors(events)
    return _mark_invalid(commands, errors) if any(errors) else commands


def decode_frame(data: str, relay: str) -> list[Command]:
    """Return the commands of a frame in order, their events not verified yet, or raise answer_invalid."""
    try:
        texts: Sequence[str | msgspec.Raw] = [data] if data.startswith(_ONE_COMMAND) else _texts_of(data)
        return [command for text in texts if (command := _decode_command(text)) is not None]
    except (ValueError, RecursionError) as invalid:
        raise error("answer_invalid", relay=relay, reason=str(invalid)) from invalid


def _texts_of(data: str) -> Sequence[str | msgspec.Raw]:
    parts = _ARRAY.decode(data)
    return parts if parts and bytes(parts[0])[:1] == b"[" else [data]


def _decode_command(text: str | msgspec.Raw) -> Command | None:
    try:
        command = _COMMAND.decode(text)
    except msgspec.ValidationError as invalid:
        verb = _verb_of(text)
        if verb in _KNOWN_VERBS:
            raise ValueError(f"{verb} is malformed: {invalid}") from invalid
        return None
    if isinstance(command, _WithEvent):
        return command.decode()
    return command


def _verb_of(text: str | msgspec.Raw) -> str:
    parts = _ARRAY.decode(text)
    if not parts:
        raise ValueError("a command is an empty array")
    return _VERB.decode(parts[0])


def _mark_invalid(commands: Sequence[Command], errors: Sequence[PosthouseError | None]) -> list[Command]:
    """Replace the commands whose events did not verify; `errors` has one entry per command with an event."""
    remaining = iter(errors)
    return [_invalid(each, next(remaining)) if isinstance(each, _CARRIERS) else each for each in commands]


def _invalid(
    command: SubscribedEvent | DeliveredMessage | ConfirmedMessages | ReceivedReceipt, invalid: PosthouseError | None
) -> Command:
    if invalid is None:
        return command
    if isinstance(command, SubscribedEvent):
        return InvalidEvent(command.sub, invalid)
    return InvalidMessage(command.event.id if isinstance(command, DeliveredMessage) else None, invalid)


def read_lock_answer(value: Any, type: type[T], relay: str) -> T:  # noqa: A002 - the domain's word
    """Return an answer as its struct, or raise answer_invalid."""
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as invalid:
        raise error("answer_invalid", relay=relay, reason=f"LOCKED is malformed: {invalid}") from invalid
