"""The event: a signed statement of a node, and what its tags say.

An Event in memory has the right types but proves nothing: structure is checked in event_structure, the signature
in posthouse.keys. Reading an event from JSON is strict, because two readers must never see two different events
in one text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.model.canonical import encode_canonical
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import EVENT_MAX_JSON_BYTES, SECOND_NS
from posthouse.model.node import DEFAULT_MESH
from posthouse.model.strict_json import refuse_duplicate_keys

Tag = tuple[str, ...]


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event, field by field as on the wire."""

    id: str
    pubkey: str
    created_at_ns: int
    kind: int
    tags: tuple[Tag, ...]
    content: str
    sig: str

    def canonical(self) -> bytes:
        """Return the bytes its id and signature stand for."""
        return encode_canonical(self.pubkey, self.created_at_ns, self.kind, self.tags, self.content)

    def tag(self, name: str) -> Tag | None:
        """Return the first tag of a name, or None."""
        for tag in self.tags:
            if tag and tag[0] == name:
                return tag
        return None

    def values(self, name: str) -> list[str]:
        """Return the first value of every tag of a name that has one, in order."""
        return [tag[1] for tag in self.tags if len(tag) > 1 and tag[0] == name]

    def value(self, name: str) -> str | None:
        """Return the first value of the first tag of a name; None when there is no tag or no value."""
        tag = self.tag(name)
        return tag[1] if tag is not None and len(tag) > 1 else None

    @property
    def mesh(self) -> str:
        return self.value("mesh") or DEFAULT_MESH

    @property
    def d(self) -> str:
        return self.value("d") or ""

    @property
    def expiration_s(self) -> int | None:
        """Unix seconds after which the event is not served; only right once the structure was checked."""
        text = self.value("expiration")
        return None if text is None else int(text)

    @property
    def replace_key(self) -> tuple[str, int, str]:
        """What a replaceable or addressable event replaces others of."""
        return self.pubkey, self.kind, self.d

    def is_newer_than(self, other: Event) -> bool:
        """Tell whether this event replaces another of the same key: the larger (created_at_ns, id) does."""
        return (self.created_at_ns, self.id) > (other.created_at_ns, other.id)

    def is_expired(self, now_ns: int) -> bool:
        """Tell whether the event's expiration has come."""
        expiration_s = self.expiration_s
        return expiration_s is not None and expiration_s * SECOND_NS <= now_ns


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Event)
_FIELDS = frozenset(Event.__struct_fields__)


def encode_event(event: Event) -> bytes:
    """Return the event as JSON, compact, in the order of its fields."""
    return _ENCODER.encode(event)


def decode_event(data: bytes | msgspec.Raw) -> Event:
    """Return the event in a JSON text, or raise the code of what is wrong with the text."""
    return read_event(data)[0]


def read_event(data: bytes | msgspec.Raw) -> tuple[Event, bytes]:
    """Return the event in a JSON text and how `encode_event` writes it, or raise what is wrong with the text."""
    raw = bytes(data)
    if len(raw) > EVENT_MAX_JSON_BYTES:
        raise error("event_too_large", bytes=len(raw), limit=EVENT_MAX_JSON_BYTES)
    try:
        event = _DECODER.decode(raw)
    except msgspec.ValidationError as fault:
        raise _explain(str(fault)) from fault
    except (ValueError, RecursionError) as fault:
        raise error("json_invalid", reason=str(fault)) from fault
    # msgspec keeps the last of two equal keys; the text it would write itself has none, so look only at others
    text = _ENCODER.encode(event)
    if text != raw:
        refuse_duplicate_keys(raw)
    return event, text


def event_from(value: Any) -> Event:
    """Return the event in plain JSON values that were read strictly before, or raise what is wrong with them."""
    try:
        return msgspec.convert(value, Event)
    except msgspec.ValidationError as fault:
        raise _explain(str(fault)) from fault


def _explain(fault: str) -> PosthouseError:
    """Turn msgspec's sentence into a code; the sentence names the field in back-quotes or in a path."""
    if fault.startswith("Object missing required field"):
        return error("event_field_missing", field=fault.split("`")[1])
    if fault.startswith("Object contains unknown field"):
        return error("event_field_unknown", field=fault.split("`")[1])
    reason, _, path = fault.partition(" - at `$")
    field = path.strip(".`").split("[")[0]
    if field in _FIELDS:
        return error("event_field_type", field=field, reason=reason)
    return error("event_not_object", found=fault.rpartition("got ")[2].strip("`"))
