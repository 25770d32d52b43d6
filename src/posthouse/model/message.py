"""Messages: events of kind 1000, read into what delivery needs to know.

Reading judges the tags completely, so that whoever holds a Message need not doubt any field. The body stays in
the event; it is sealed in direct messages and nobody on the way looks into it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event, Tag
from posthouse.model.event_structure import is_event_id
from posthouse.model.fingerprint import DEFAULT_PRIORITY, DestinationKind, Priority, fingerprint
from posthouse.model.jcs import parse_jcs
from posthouse.model.kinds import MESSAGE
from posthouse.model.limits import BODY_MAX_BYTES, CLIENT_MESSAGE_ID_MAX_BYTES
from posthouse.model.mesh_budget import MeshBudget, decode_mesh_budget
from posthouse.model.node import DEFAULT_MESH, NODE_SCHEME, is_node_id
from posthouse.model.subjects import validate_topic

#: tags by their name
_Tags = dict[str, list[Tag]]
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
    tags = _by_name(event)
    _check_size(event, _first(tags, "enc"))
    kind, ref, recipient = _destination(tags)
    return Message(
        mesh=_first(tags, "mesh") or DEFAULT_MESH,
        client_message_id=_client_message_id(tags),
        destination_kind=kind,
        destination_ref=ref,
        recipient=recipient,
        reply_to=_reply_to(tags),
        priority=_priority(tags),
        meta=_meta(tags),
        budget=_budget(tags),
        mentions=_mentions(event) if "mention" in tags else (),
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


def check_content(event: Event) -> None:
    """Raise body_too_large for content that cannot hold a body within the limit; for relays, after sealing.

    An age armor's size depends on its recipients, so only the limit of the whole event bounds it.
    """
    _check_size(event, event.value("enc"))


def _check_size(event: Event, enc: str | None) -> None:
    if enc == "age":
        return
    size = len(event.content.encode("utf-8"))
    if size > (_BOX_MAX_CHARS if enc == "box" else BODY_MAX_BYTES):
        raise error("body_too_large", bytes=size, limit=BODY_MAX_BYTES)


def _malformed(reason: str) -> PosthouseError:
    return error("message_malformed", reason=reason)


def _by_name(event: Event) -> _Tags:
    tags: _Tags = {}
    for tag in event.tags:
        tags.setdefault(tag[0], []).append(tag)
    return tags


def _first(named: _Tags, name: str) -> str | None:
    """Return the first value of the first tag of a name, as Event.value does."""
    tags = named.get(name)
    return tags[0][1] if tags is not None and len(tags[0]) > 1 else None


def _single(named: _Tags, name: str) -> str | None:
    tags = named.get(name)
    if tags is None:
        return None
    if len(tags) > 1:
        raise _malformed(f"it has {len(tags)} {name} tags")
    if len(tags[0]) != 2:
        raise _malformed(f"its {name} tag has not exactly one value")
    return tags[0][1]


def _client_message_id(tags: _Tags) -> str:
    value = _single(tags, "c")
    if value is None:
        raise _malformed("it has no c tag")
    if (reason := _id_fault(value)) is not None:
        raise _malformed(f"its client_message_id is not valid: {reason}")
    return value


def _destination(tags: _Tags) -> tuple[DestinationKind, str, str | None]:
    topic, recipient = _single(tags, "t"), _single(tags, "p")
    if recipient is None and topic is not None:
        return DestinationKind.TOPIC, validate_topic(topic), None
    if topic is None and recipient is not None:
        if not is_node_id(recipient):
            raise _malformed("its p tag is not a node id")
        return DestinationKind.DM, recipient[_KEY_AT:], recipient
    raise _malformed("it has not exactly one of the tags t and p")


def _reply_to(tags: _Tags) -> str | None:
    value = _single(tags, "e")
    if value is not None and not is_event_id(value):
        raise _malformed("its e tag is not an event id")
    return value


def _priority(tags: _Tags) -> Priority:
    value = _single(tags, "priority")
    try:
        return DEFAULT_PRIORITY if value is None else Priority(value)
    except ValueError as fault:
        raise _malformed("its priority is not now, next or low") from fault


def _meta(tags: _Tags) -> str:
    text = _single(tags, "meta")
    if text is None:
        return ""
    try:
        meta: Any = parse_jcs(text)
    except PosthouseError as fault:
        raise _malformed(f"its meta is not in JCS form: {fault}") from fault
    if meta is not None and type(meta) is not dict:
        raise _malformed("its meta is not an object")
    return text if meta else ""


def _budget(tags: _Tags) -> MeshBudget | None:
    text = _single(tags, "budget")
    try:
        return None if text is None else decode_mesh_budget(text)
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
    return "it holds a control character" if _CONTROL.search(client_message_id) else None
