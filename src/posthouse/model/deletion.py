"""Deletions (events of kind 5): an author takes back its own events, named by id or by coordinate, as in NIP-09.

An id names one event; a coordinate names all versions that were created up to the deletion. A deletion of direct
messages names their recipient in a p tag, so that only the two ends see it. Reading validates the tags completely; the
store knows the events and decides which of them the deletion may remove.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import CONFIRMATION, DELETION, RECEIPT, Coordinate, Event, Tag, is_event_id, parse_coordinate
from posthouse.model.node import is_node_id

#: kinds that their author cannot take back: other nodes have acted on them
LASTING_KINDS = frozenset({DELETION, CONFIRMATION, RECEIPT})
#: the tag of a deletion by the relay that names the administrator who asked for it
BY_TAG = "by"


@dataclass(frozen=True, slots=True)
class Deletion:
    """The content of a deletion's tags."""

    #: each event once, in the given order
    ids: tuple[str, ...]
    #: each coordinate once, in the given order
    coordinates: tuple[Coordinate, ...]
    #: of the direct messages that it names; None: it names none
    recipient: str | None


def deletion_tags(ids: Iterable[str], coordinates: Iterable[str] = (), recipient: str | None = None) -> list[Tag]:
    """Return the tags of a deletion."""
    tags: list[Tag] = [] if recipient is None else [("p", recipient)]
    tags += [("e", id_) for id_ in ids]
    tags += [("a", coordinate) for coordinate in coordinates]
    return tags


def read_deletion(event: Event) -> Deletion:
    """Return the deletion in an event of kind 5, or raise deletion_malformed."""
    named = {name: [tag for tag in event.tags if tag[0] == name] for name in ("p", "e", "a")}
    if any(len(tag) < 2 for tags in named.values() for tag in tags):
        raise _malformed("a p, e or a tag has no value")
    recipients, ids, coordinates = ([tag[1] for tag in tags] for tags in named.values())
    if len(recipients) > 1 or not all(map(is_node_id, recipients)):
        raise _malformed("it has more than one p tag, or one that is not a node id")
    if not all(map(is_event_id, ids)):
        raise _malformed("an e tag is not an event id")
    if not ids and not coordinates:
        raise _malformed("it has neither an e tag nor an a tag")
    if recipients and coordinates:
        raise _malformed("it has a p tag, but no direct message has a coordinate")
    parsed = [_own_coordinate(text, event.pubkey) for text in coordinates]
    recipient = recipients[0] if recipients else None
    return Deletion(tuple(dict.fromkeys(ids)), tuple(dict.fromkeys(parsed)), recipient)


def _own_coordinate(text: str, author: str) -> Coordinate:
    try:
        coordinate = parse_coordinate(text)
    except PosthouseError as fault:
        raise _malformed(str(fault)) from fault
    if coordinate.pubkey != author:
        raise _malformed(f"the coordinate {text} is of another author")
    return coordinate


def _malformed(reason: str) -> PosthouseError:
    return error("deletion_malformed", reason=reason)
