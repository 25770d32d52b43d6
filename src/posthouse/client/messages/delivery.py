"""What a mailbox hands out: messages for this node, and what became of the messages it sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from posthouse.client.sealing import open_content
from posthouse.keys import NodeKey
from posthouse.model.event import Event
from posthouse.model.jcs import parse_jcs
from posthouse.model.message import Message, read_message


class Delivery:
    """One message for this node; it stays in its queue until it is confirmed or rejected."""

    def __init__(self, event: Event, seq: int, *, was_stored: bool, attempt: int, key: NodeKey) -> None:
        #: the signed event, as its sender made it
        self.event = event
        #: place in the relay's journal; ascends within one connection
        self.seq = seq
        #: whether it waited in the queue before it was first sent
        self.was_stored = was_stored
        #: how often it was sent, this time included
        self.attempt = attempt
        self._key = key

    def __repr__(self) -> str:
        return f"<Delivery {self.id} from {self.sender}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        return self.event.id

    @property
    def sender(self) -> str:
        """Node id of the author."""
        return self.event.pubkey

    @cached_property
    def message(self) -> Message:
        """What the tags say: destination, reply_to, priority, budget, mentions."""
        return read_message(self.event)

    @property
    def mesh(self) -> str:
        return self.event.mesh

    @property
    def topic(self) -> str | None:
        """The topic it was posted to; None of a direct message."""
        return None if self.message.recipient is not None else self.message.destination_ref

    @property
    def client_message_id(self) -> str:
        return self.message.client_message_id

    @cached_property
    def meta(self) -> Any:
        """The meta object, None when there is none; it is in the clear."""
        return parse_jcs(self.message.meta) if self.message.meta else None

    @cached_property
    def body(self) -> str:
        """The body in the clear; raises why it cannot be opened, then `reject` it."""
        return open_content(self._key, self.event)


class Confirmed(NamedTuple):
    """A reader has confirmed a message of this node."""

    #: of the message
    id: str
    #: node id of who confirmed it
    reader: str
    was_stored: bool
    #: when the relay took the confirmation
    at_ns: int
    #: the confirmation, signed by the reader
    event: Event


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a relay did with confirmed ids."""

    #: ids that were closed by it, or by the same confirmation before
    confirmed: tuple[str, ...]
    #: ids without effect -> why: duplicate, expired, purged, blocked, unknown, foreign
    ignored: Mapping[str, str]


class Presence(NamedTuple):
    """A node opened its first mailbox in a mesh, or closed its last."""

    node: str
    is_online: bool
