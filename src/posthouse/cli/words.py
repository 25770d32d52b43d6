"""How commands show times and senders of messages to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posthouse.client.daemon import InboxItem


def moment(value: Any) -> str:
    """Return a time for people: nanoseconds since 1970 as text, anything else as it is, nothing as a dash."""
    from datetime import UTC, datetime

    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        seconds, rest_ns = divmod(value, 1_000_000_000)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns // 1_000_000:03d}Z"
    return str(value)


def sender(item: InboxItem) -> str:
    """Return who wrote a message: the name, or the beginning of the key."""
    return item.sender_name or item.sender.removeprefix("ed25519:")[:8]


def body(item: InboxItem) -> str:
    """Return the text of a message, or a word about why there is none."""
    return "(undecryptable)" if item.undecryptable or item.body is None else item.body
