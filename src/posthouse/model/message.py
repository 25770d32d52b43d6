"""Messages (events of kind 1000) and their confirmations (kind 1001), as values that delivery needs.

Reading validates the tags completely, so no field of a Message or Confirmation needs a second check. The body stays
in the event; in direct messages it is sealed. The store of deliveries decides if a confirmed id is a delivery of this
reader.

The fingerprint distinguishes a retry from a different request under the same client_message_id: SHA-256 over seven
UTF-8 fields joined by NUL; a NUL inside a field is refused. The daemon computes it over the plaintext, the relay over
the content as received. If it changes, every dedupe record stops matching: raise ENVELOPE_VERSION and keep the old
function.
"""

from __future__ import annotations

import enum
import hashlib
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from posthouse.model.address import is_agent_name
from posthouse.model.budget import MeshBudget, decode_mesh_budget
from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import CONFIRMATION, MESSAGE, Event, is_event_id
from posthouse.model.limits import BODY_MAX_BYTES, CLIENT_MESSAGE_ID_MAX_BYTES, CONFIRMATION_MAX_IDS
from posthouse.model.node import DEFAULT_MESH, NODE_ID, NODE_SCHEME, is_node_id
from posthouse.model.strict_json import jcs, parse_jcs
from posthouse.model.subjects import validate_topic

ENVELOPE_VERSION = "1"
PREFIX_BYTES = 8  # enough to compare two requests by eye, too few to probe a secret


class DestinationKind(enum.StrEnum):
    """The kind of a message's destination."""

    TOPIC = "topic"
    DM = "dm"
    QUEUE = "queue"


class Priority(enum.StrEnum):
    """The urgency that a sender gives its message; it never changes the order."""

    NOW = "now"
    NEXT = "next"
    LOW = "low"


DEFAULT_PRIORITY = Priority.NEXT


def fingerprint(
    destination_kind: DestinationKind,
    destination_ref: str,
    reply_to: str | None,
    priority: Priority | None,
    meta_text: str,
    body: bytes,
) -> bytes:
    """Return the 32 bytes; `meta_text` is meta_field() of the meta value or a text already in JCS form.

    `destination_ref` is the topic's name, or what `direct_ref` returns.
    """
    fields = (
        ENVELOPE_VERSION,
        destination_kind,
        destination_ref,
        reply_to or "",
        priority or DEFAULT_PRIORITY,
        "" if meta_text in ("null", "{}") else meta_text,
        hashlib.sha256(body).hexdigest(),
    )
    text = "\0".join(fields)
    if text.count("\0") != len(fields) - 1:
        raise error("value_invalid", name="a field of the fingerprint", reason="it contains a NUL character")
    try:
        return hashlib.sha256(text.encode("utf-8")).digest()
    except UnicodeEncodeError as fault:
        raise error("value_invalid", name="a field of the fingerprint", reason="a lone surrogate") from fault


def direct_ref(recipient: str, to_agent: str = "") -> str:
    """Return the destination of a direct message: the recipient's key in hex and, after a slash, its agent."""
    key = recipient[_KEY_AT:]
    return f"{key}/{to_agent}" if to_agent else key


def meta_field(meta: Any) -> str:
    """Return the meta field: the JCS text, or "" if meta is absent, null or {}."""
    return "" if meta is None or meta == {} else jcs(meta)


def fingerprint_prefix(digest: bytes) -> str:
    """Return the digits of a fingerprint that a conflict shows."""
    return digest[:PREFIX_BYTES].hex()


#: tags that a message has at most once, with exactly one value
_SINGLE = frozenset({"t", "p", "c", "e", "priority", "meta", "budget", "from", "to"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_KEY_AT = len(NODE_SCHEME) + 1
_BOX_OVERHEAD = 24 + 16  # nonce and authenticator
_BOX_MAX_CHARS = -(-(BODY_MAX_BYTES + _BOX_OVERHEAD) // 3) * 4


class Message(msgspec.Struct, frozen=True, gc=False):
    """The content of a message's tags."""

    mesh: str
    client_message_id: str
    destination_kind: DestinationKind
    #: the topic's name, or the recipient's key as 64 lower-case digits and its agent: `direct_ref`
    destination_ref: str
    #: the recipient's node id in a direct message
    recipient: str | None
    reply_to: str | None
    priority: Priority
    #: JCS text, "" when absent
    meta: str
    budget: MeshBudget | None
    mentions: tuple[str, ...]
    #: the sender's agent; "" if the host itself sent it
    from_agent: str = ""
    #: the recipient's agent in a direct message; "" for the host's default inbox
    to_agent: str = ""


def read_message(event: Event) -> Message:
    """Return the message in an event of kind 1000, or raise message_malformed, topic_invalid or body_too_large."""
    if event.kind != MESSAGE:
        raise _malformed(f"its kind is {event.kind}, not {MESSAGE}")
    values = _first_values(event)
    _check_size(event, values.get("enc"))
    client_message_id = _client_message_id(values)
    kind, ref, recipient = _destination(values)
    return Message(
        mesh=values.get("mesh") or DEFAULT_MESH,
        client_message_id=client_message_id,
        destination_kind=kind,
        destination_ref=ref,
        recipient=recipient,
        reply_to=_reply_to(values["e"]) if "e" in values else None,
        priority=_priority(values["priority"]) if "priority" in values else DEFAULT_PRIORITY,
        meta=_meta(values["meta"]) if "meta" in values else "",
        budget=_budget(values["budget"]) if "budget" in values else None,
        mentions=_mentions(event) if "mention" in values else (),
        from_agent=_agent(values, "from") if "from" in values else "",
        to_agent=_agent(values, "to") if "to" in values else "",
    )


def without_agents(message: Message) -> Message:
    """Return the message as a relay recorded it that did not know agents: from and to were tags without meaning."""
    if message.recipient is None:
        return msgspec.structs.replace(message, from_agent="")
    ref = direct_ref(message.recipient)
    return msgspec.structs.replace(message, destination_ref=ref, from_agent="", to_agent="")


def message_fingerprint(message: Message, event: Event) -> bytes:
    """Return the fingerprint over the content as received."""
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
    """Return the first value of the first tag of each name, "" for a tag without value."""
    values: dict[str, str] = {}
    for tag in event.tags:
        name = tag[0]
        if name in _SINGLE:
            if name in values:
                raise _malformed(f"it has more than one {name} tag")
            if len(tag) != 2:
                raise _malformed(f"its {name} tag must have exactly one value")
        if name not in values:
            values[name] = tag[1] if len(tag) > 1 else ""
    return values


def _client_message_id(values: dict[str, str]) -> str:
    value = values.get("c")
    if value is None:
        raise _malformed("it has no c tag")
    if (reason := _id_fault(value)) is not None:
        raise _malformed(f"its client_message_id is invalid: {reason}")
    return value


def _destination(values: dict[str, str]) -> tuple[DestinationKind, str, str | None]:
    topic, recipient = values.get("t"), values.get("p")
    if recipient is None and topic is not None:
        if "to" in values:
            raise _malformed("only a direct message has a to tag")
        return DestinationKind.TOPIC, validate_topic(topic), None
    if topic is None and recipient is not None:
        if NODE_ID.fullmatch(recipient) is None:
            raise _malformed("its p tag is not a node id")
        return DestinationKind.DM, direct_ref(recipient, values.get("to", "")), recipient
    raise _malformed("it must have exactly one of the tags t and p")


def _agent(values: dict[str, str], tag: str) -> str:
    name = values[tag]
    if not is_agent_name(name):
        raise _malformed(f"its {tag} tag is not the name of an agent: 1 to 32 of a-z, 0-9 and -, not - first")
    return name


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
        raise _malformed(f"its budget is invalid: {fault}") from fault


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
    if client_message_id.isprintable():  # fast path: true for nearly all ids
        return None
    return "it contains a control character" if _CONTROL.search(client_message_id) else None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The content of a confirmation's tags."""

    mesh: str
    #: the node that confirms
    reader: str
    #: the node whose messages are confirmed
    sender: str
    #: in the given order; an id may occur twice
    ids: tuple[str, ...]


def read_confirmation(event: Event) -> Confirmation:
    """Return the confirmation in an event of kind 1001, or raise confirmation_malformed."""
    if event.kind != CONFIRMATION:
        raise _confirmation_malformed(f"its kind is {event.kind}, not {CONFIRMATION}")
    ids, senders = _values(event, "e"), _values(event, "p")
    if not 1 <= len(ids) <= CONFIRMATION_MAX_IDS:
        raise _confirmation_malformed(f"it has {len(ids)} e tags, not 1 to {CONFIRMATION_MAX_IDS}")
    if len(senders) != 1 or not is_node_id(senders[0]):
        raise _confirmation_malformed("it does not have exactly one p tag with a node id")
    for id_ in ids:
        if not is_event_id(id_):
            raise _confirmation_malformed("an e tag is not an event id")
    return Confirmation(event.mesh, event.pubkey, senders[0], tuple(ids))


def _values(event: Event, name: str) -> list[str]:
    tags = [tag for tag in event.tags if tag[0] == name]
    if any(len(tag) != 2 for tag in tags):
        raise _confirmation_malformed(f"an {name} tag does not have exactly one value")
    return [tag[1] for tag in tags]


def _confirmation_malformed(reason: str) -> PosthouseError:
    return error("confirmation_malformed", reason=reason)


def history_item(
    seq: int, event: Event, sender_name: str | None, body: str | None, undecryptable: str | None
) -> dict[str, Any]:
    """Return a message with its opened body, or with the code of the reason why it cannot be opened."""
    message = read_message(event)
    return {
        "message_id": event.id,
        "history_id": seq,
        "client_message_id": message.client_message_id,
        "mesh": message.mesh,
        "topic": None if message.recipient is not None else message.destination_ref,
        "to": message.recipient,
        "to_agent": message.to_agent,
        "sender": event.pubkey,
        "from_agent": message.from_agent,
        "sender_name": sender_name,
        "body": body,
        "meta": msgspec.json.decode(message.meta) if message.meta else None,
        "reply_to_id": message.reply_to,
        "priority": message.priority.value,
        "sent_at": format_utc(event.created_at_ns),
        "undecryptable": undecryptable,
    }
