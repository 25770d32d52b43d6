"""Inbox rows as values: what is put in, and what the local interface shows.

The names in `shown` are a contract of the local interface. If you change one: 1. DaemonClient, 2. docs/reference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from posthouse.model.timestamps import format_utc


class NewItem(NamedTuple):
    """A message to be stored."""

    id: str
    client_message_id: str
    message_id: str
    mesh: str
    topic: str | None
    sender: str
    sender_name: str | None
    #: None when it could not be opened
    body: str | None
    #: JCS text, "" when absent
    meta: str
    reply_to_id: str | None
    priority: str
    #: the text of its budget tag
    budget: str | None
    #: why it could not be opened
    undecryptable: str | None


class InboxItem(NamedTuple):
    """A stored message."""

    position: int
    id: str
    client_message_id: str
    message_id: str
    mesh: str
    topic: str | None
    sender: str
    sender_name: str | None
    body: str | None
    meta: str
    received_at_ns: int
    reply_to_id: str | None
    seen_at_ns: int | None
    priority: str
    budget: str | None
    undecryptable: str | None

    def shown(self) -> dict[str, Any]:
        """Return the message as the local interface tells it; one that cannot be opened has no body and says why."""
        return {
            "id": self.id,
            "client_message_id": self.client_message_id,
            "message_id": self.message_id,
            "mesh": self.mesh,
            "topic": self.topic,
            "sender": self.sender,
            "sender_name": self.sender_name,
            "body": self.body,
            "meta": msgspec.json.decode(self.meta) if self.meta else None,
            "received_at": format_utc(self.received_at_ns),
            "reply_to_id": self.reply_to_id,
            "seen_at": None if self.seen_at_ns is None else format_utc(self.seen_at_ns),
            "priority": self.priority,
            "undecryptable": self.undecryptable,
        }


class Wanted(NamedTuple):
    """What a reader of the inbox asks for."""

    #: position after which it looks
    after: int = 0
    topic: str | None = None
    sender: str | None = None
    is_unread: bool = False
    limit: int = 100
    #: received at or after, wall time
    since_ns: int = 0

    def matches(self, item: InboxItem) -> bool:
        """Tell whether a message is asked for."""
        return (
            item.position > self.after
            and item.received_at_ns >= self.since_ns
            and self.topic in (None, item.topic)
            and self.sender in (None, item.sender)
            and not (self.is_unread and item.seen_at_ns is not None)
        )
