"""Messages of the mesh as payloads of the bus, and the other way round.

On the bus a message is a standard payload: its body is `content`, what belongs to the mesh is in `platformData`. Any
other payload leaves as its JSON text. Of a payload only usage becomes meta, because meta travels in the clear.
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.daemon.inbox import InboxItem
from posthouse.daemon.send import SendRequest
from posthouse.model.envelope import Envelope
from posthouse.model.event_structure import is_event_id
from posthouse.model.payload import ChannelType, StandardPayload, Usage


def arrival_payload(item: InboxItem) -> StandardPayload:
    """Return what is published of a message that came."""
    return StandardPayload(
        content=item.body or "",
        sender_name=item.sender_name,
        channel_name=item.topic,
        channel_type=ChannelType.DM if item.topic is None else ChannelType.CHANNEL,
        platform_data={
            "mesh": item.mesh,
            "inboxId": item.id,
            "messageId": item.message_id,
            "clientMessageId": item.client_message_id,
            "sender": item.sender,
            "replyToId": item.reply_to_id,
            "priority": item.priority,
            "meta": msgspec.json.decode(item.meta) if item.meta else None,
        },
    )


def departure_request(envelope: Envelope, destination: str) -> SendRequest:
    """Return the message an envelope becomes; its id makes a second handling harmless."""
    payload = envelope.payload
    fields: dict[str, Any] = payload if isinstance(payload, dict) else {}
    content = fields.get("content")
    return SendRequest(
        to=destination,
        message=content if isinstance(content, str) else msgspec.json.encode(payload).decode(),
        meta=_usage(fields.get("usage")),
        reply_to_id=_reply_to(fields.get("platformData")),
        client_message_id=f"bus-{envelope.id}",
    )


def _usage(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        usage = msgspec.convert(value, Usage)
    except msgspec.ValidationError:
        return None
    return {"usage": {name: getattr(usage, name) for name in usage.__struct_fields__}}


def _reply_to(data: Any) -> str | None:
    given = data.get("replyToId") if isinstance(data, dict) else None
    return given if isinstance(given, str) and is_event_id(given) else None
