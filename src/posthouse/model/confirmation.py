"""Confirmations: events of kind 1001 by which a reader says that it has taken messages of one sender.

Each id counts for itself; whether it names a delivery of this reader is judged where the deliveries are.
"""

from __future__ import annotations

from dataclasses import dataclass

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.event_structure import is_event_id
from posthouse.model.kinds import CONFIRMATION
from posthouse.model.limits import CONFIRMATION_MAX_IDS
from posthouse.model.node import is_node_id


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What the tags of a confirmation say."""

    mesh: str
    #: the node that confirms
    reader: str
    #: the node whose messages are confirmed
    sender: str
    #: in the order given; an id may stand twice
    ids: tuple[str, ...]


def read_confirmation(event: Event) -> Confirmation:
    """Return the confirmation in an event of kind 1001, or raise confirmation_malformed."""
    if event.kind != CONFIRMATION:
        raise _malformed(f"its kind is {event.kind}, not {CONFIRMATION}")
    ids = _values(event, "e")
    if not 1 <= len(ids) <= CONFIRMATION_MAX_IDS:
        raise _malformed(f"it has {len(ids)} e tags, not 1 to {CONFIRMATION_MAX_IDS}")
    if not all(is_event_id(id_) for id_ in ids):
        raise _malformed("an e tag is not an event id")
    senders = _values(event, "p")
    if len(senders) != 1 or not is_node_id(senders[0]):
        raise _malformed("it has not exactly one p tag with a node id")
    return Confirmation(event.mesh, event.pubkey, senders[0], tuple(ids))


def _values(event: Event, name: str) -> list[str]:
    tags = [tag for tag in event.tags if tag[0] == name]
    if any(len(tag) != 2 for tag in tags):
        raise _malformed(f"an {name} tag has not exactly one value")
    return [tag[1] for tag in tags]


def _malformed(reason: str) -> PosthouseError:
    return error("confirmation_malformed", reason=reason)
