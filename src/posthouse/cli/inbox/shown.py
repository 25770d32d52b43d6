"""How mail is shown to people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.cli.console import table
from posthouse.cli.words import body, sender

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.client.daemon import InboxItem


def mail_table(items: Sequence[InboxItem]) -> RenderableType:
    """Lay out mail, one row each."""
    rows = [
        (item.id, item.received_at, sender(item), f"#{item.topic}" if item.topic else "", body(item)) for item in items
    ]
    return table(("id", "received", "from", "topic", "text"), rows)


def mail_lines(item: InboxItem) -> str:
    """Return one message with all that is known of it."""
    named = {
        "id": item.id,
        "message": item.message_id,
        "from": f"{sender(item)}  {item.sender}",
        "topic": f"#{item.topic}" if item.topic else None,
        "answers": item.reply_to_id,
        "meta": item.meta or None,
        "received": item.received_at,
        "seen": item.seen_at,
        "text": body(item),
    }
    return "\n".join(f"{name:<9}{value}" for name, value in named.items() if value is not None)
