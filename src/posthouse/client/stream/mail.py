"""DELIVER and CONFIRMED as they come from a relay: parsed once, strictly, before anybody sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event, decode_event
from posthouse.model.event_structure import is_event_id


class About(msgspec.Struct, frozen=True):
    """What a relay says of a delivery."""

    was_stored: bool
    attempt: int


class ConfirmedItem(msgspec.Struct, frozen=True):
    """What became of one message, as the relay says."""

    id: str
    was_stored: bool
    at_ns: int


class SentDelivery(NamedTuple):
    """The arguments of DELIVER."""

    seq: int
    event: Event
    about: About


class SentConfirmed(NamedTuple):
    """The arguments of CONFIRMED."""

    items: tuple[ConfirmedItem, ...]
    event: Event


@dataclass(frozen=True, slots=True)
class ForgedMail:
    """Mail with an event that does not hold what it claims."""

    #: the id it claims, of a delivery; None of anything else
    delivery_id: str | None
    fault: PosthouseError


SentMail = SentDelivery | SentConfirmed

_SEQ = msgspec.json.Decoder(int)
_ABOUT = msgspec.json.Decoder(About)
_ITEMS = msgspec.json.Decoder(tuple[ConfirmedItem, ...])


class _Claimed(msgspec.Struct):
    id: str


_CLAIMED = msgspec.json.Decoder(_Claimed)


def read_delivery(arguments: Sequence[msgspec.Raw]) -> SentDelivery:
    """Return what a DELIVER command carries; ValueError or the error of the event when it is none."""
    seq, event, about = arguments
    return SentDelivery(_SEQ.decode(seq), decode_event(event), _ABOUT.decode(about))


def read_confirmed(arguments: Sequence[msgspec.Raw]) -> SentConfirmed:
    """Return what a CONFIRMED command carries; ValueError or the error of the event when it is none."""
    items, event = arguments
    return SentConfirmed(_ITEMS.decode(items), decode_event(event))


def forged_mail(verb: str, arguments: Sequence[msgspec.Raw], fault: PosthouseError) -> ForgedMail:
    """Return what is left of mail whose event cannot be believed."""
    return ForgedMail(_claimed_id(arguments[1]) if verb == "DELIVER" else None, fault)


def _claimed_id(event: msgspec.Raw) -> str | None:
    try:
        claimed = _CLAIMED.decode(event).id
    except ValueError:
        return None
    return claimed if is_event_id(claimed) else None


#: verb -> how its arguments are read
MAIL_READERS: Mapping[str, Callable[[Sequence[msgspec.Raw]], SentMail]] = {
    "DELIVER": read_delivery,
    "CONFIRMED": read_confirmed,
}
