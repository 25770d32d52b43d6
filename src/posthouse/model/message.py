"""Messages: events of kind 1000, read into what delivery needs to know.

Reading judges the tags completely, so that whoever holds a Message need not doubt any field. The body stays in
the event; it is sealed in direct messages and nobody on the way looks into it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.event_structure import is_event_id
from posthouse.model.fingerprint import DEFAULT_PRIORITY, DestinationKind, Priority, fingerprint
from posthouse.model.jcs import parse_jcs
from posthouse.model.kinds import MESSAGE
from posthouse.model.limits import BODY_MAX_BYTES, CLIENT_MESSAGE_ID_MAX_BYTES
from posthouse.model.mesh_budget import MeshBudget, decode_mesh_budget
from posthouse.model.node import DEFAULT_MESH, NODE_SCHEME, is_node_id
from posthouse.model.subjects import validate_topic

#: tags that a message has once at most, with exactly one value
_SINGLE = frozenset({"t", "p", "c", "e", "priority", "meta", "budget"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_KEY_AT = len(NODE_SCHEME) + 1
_BOX_OVERHEAD = 24 + 16  # nonce and authenticator
_BOX_MAX_CHARS = -(-(BODY_MAX_BYTES + _BOX_OVERHEAD) // 3) * 4


class Message(msgspec.Struct, frozen=True, gc=False):
    """What the tags of a message say."""

    mesh: str
    client_message_id: str
    destination_kind: DestinationKind
    #: the topic's name, or the recipient's key as 64 lower-case digits
    destination_ref: str
    #: the recipient's node id in a direct message
    recipient: str | None
    reply_to: str | None
    priority: Priority
    #: JCS text, "" when absent
    meta: str
    budget: MeshBudget | None
    mentions: tuple[str, ...]


def read_message(event: Event) -> Message:
    """Return the message in an event of kind 1000, or raise message_malformed, topic_invalid or body_too_large."""
    if event.kind != MESSAGE:
        raise _malformed(f"its kind is {event.kind}, not {MESSAGE}")
    values = _first_values(event)
    _check_size(event, values.get("enc"))
    kind, ref, recipient = _destination(values)
    return Message(
        mesh=values.get("mesh") or DEFAULT_MESH,
        client_message_id=_client_message_id(values),
        destination_kind=kind,
        destination_ref=ref,
        recipient=recipient,
        reply_to=_reply_to(values["e"]) if "e" in values else None,
        priority=_priority(values["priority"]) if "priority" in values else DEFAULT_PRIORITY,
        meta=_meta(values["meta"]) if "meta" in values else "",
        budget=_budget(values["budget"]) if "budget" in values else None,
        mentions=_mentions(event) if "mention" in values else (),
    )


def message_fingerprint(message: Message, event: Event) -> bytes:
    """Return the accept_fingerprint: over the content as received."""
    return fingerprint(
        message.destination_kind,
        message.destination_ref,
        message.reply_to,
        message.priority,
        message.meta,
        event.content.encode("utf-8"),
    )


def validate_client_message_id(client_message_id: str) -> str:
    """Return the id unchanged, or raise id_invalid: 1 to 255 bytes without control characters."""
    reason = _id_fault(client_message_id)
    if reason is not None:
        raise error("id_invalid", id=client_message_id, reason=reason)
    return client_message_id


def check_body(body: bytes) -> bytes:
    """Return the body unchanged, or raise body_too_large; for senders, before sealing."""
    if len(body) > BODY_MAX_BYTES:
        raise error("body_too_large", bytes=len(body), limit=BODY_MAX_BYTES)
    return body


def _check_size(event: Event, enc: str | None) -> None:
    """Raise body_too_large for content that cannot hold a body within the limit; for relays, after sealing.

    An age armor's size depends on its recipients, so only the limit of the whole event bounds it.
    """
    if enc == "age":
        return
    size = len(event.content.encode("utf-8"))
    if size > (_BOX_MAX_CHARS if enc == "box" else BODY_MAX_BYTES):
        raise error("body_too_large", bytes=size, limit=BODY_MAX_BYTES)


def _malformed(reason: str) -> PosthouseError:
    return error("message_malformed", reason=reason)


def _first_values(event: Event) -> dict[str, str]:
    """Return the first value of the first tag of each name, "" where it has none."""
    values: dict[str, str] = {}
    for tag in event.tags:
        name = tag[0]
        if name in _SINGLE:
            if name in values:
                raise _malformed(f"it has more than one {name} tag")
            if len(tag) != 2:
                raise _malformed(f"its {name} tag has not exactly one value")
        if name not in values:
            values[name] = tag[1] if len(tag) > 1 else ""
    return values


def _client_message_id(values: dict[str, str]) -> str:
    value = values.get("c")
    if value is None:
        raise _malformed("it has no c tag")
    if (reason := _id_fault(value)) is not None:
        raise _malformed(f"its client_message_id is not valid: {reason}")
    return value


def _destination(values: dict[str, str]) -> tuple[DestinationKind, str, str | None]:
    topic, recipient = values.get("t"), values.get("p")
    if recipient is None and topic is not None:
        return DestinationKind.TOPIC, validate_topic(topic), None
    if topic is None and recipient is not None:
        if not is_node_id(recipient):
            raise _malformed("its p tag is not a node id")
        return DestinationKind.DM, recipient[_KEY_AT:], recipient
    raise _malformed("it has not exactly one of the tags t and p")


def _reply_to(value: str) -> str:
    if not is_event_id(value):
        raise _malformed("its e tag is not an event id")
    return value


def _priority(value: str) -> Priority:
    try:
        return Priority(value)
    except ValueError as fault:
        raise _malformed("its priority is not now, next or low") from fault


def _meta(text: str) -> str:
    try:
        meta: Any = parse_jcs(text)
    except PosthouseError as fault:
        raise _malformed(f"its meta is not in JCS form: {fault}") from fault
    if meta is not None and type(meta) is not dict:
        raise _malformed("its meta is not an object")
    return text if meta else ""


def _budget(text: str) -> MeshBudget:
    try:
        return decode_mesh_budget(text)
    except PosthouseError as fault:
        raise _malformed(f"its budget is not valid: {fault}") from fault


def _mentions(event: Event) -> tuple[str, ...]:
    mentions = event.values("mention")
    if not all(is_node_id(node) for node in mentions):
        raise _malformed("a mention is not a node id")
    return tuple(dict.fromkeys(mentions))


def _id_fault(client_message_id: str) -> str | None:
    try:
        size = len(client_message_id.encode("utf-8"))
    except (UnicodeEncodeError, AttributeError):
        return "it is not valid text"
    if not 1 <= size <= CLIENT_MESSAGE_ID_MAX_BYTES:
        return f"it has {size} bytes, not 1 to {CLIENT_MESSAGE_ID_MAX_BYTES}"
    if client_message_id.isprintable():  # as nearly all are, and quickly told
        return None
    return "it holds a control character" if _CONTROL.search(client_message_id) else None
