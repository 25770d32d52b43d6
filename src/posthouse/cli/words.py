"""How commands show senders and texts of messages to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posthouse.client.daemon import InboxItem


def sender(item: InboxItem) -> str:
    """Return who wrote a message: the name, or the beginning of the key."""
    return item.sender_name or item.sender.removeprefix("ed25519:")[:8]


def body(item: InboxItem) -> str:
    """Return the text of a message, or a word about why there is none."""
    return "(undecryptable)" if item.body is None else item.body
