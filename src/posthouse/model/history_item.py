"""A message of the past as people and programs see it, whoever remembers it: the relay or the lake. Pure.

If you change a field: what reads it changes too, `posthouse history` and the MCP tool of that name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.model.event import Event
from posthouse.model.message import read_message
from posthouse.model.timestamps import format_utc


def history_item(
    seq: int, event: Event, sender_name: str | None, body: str | None, undecryptable: str | None
) -> dict[str, Any]:
    """Return a message with its body opened, or with the code of why it cannot be."""
    message = read_message(event)
    return {
        "message_id": event.id,
        "history_id": seq,
        "client_message_id": message.client_message_id,
        "mesh": message.mesh,
        "topic": None if message.recipient is not None else message.destination_ref,
        "to": message.recipient,
        "sender": event.pubkey,
        "sender_name": sender_name,
        "body": body,
        "meta": msgspec.json.decode(message.meta) if message.meta else None,
        "reply_to_id": message.reply_to,
        "priority": message.priority.value,
        "sent_at": format_utc(event.created_at_ns),
        "undecryptable": undecryptable,
    }
