"""Events, the signed statements of nodes: kinds, fields and tags, canonical form, structure rules, and coordinates.

The kind decides how an event is stored: normal events are all stored; of replaceable and addressable ones the latest
per key counts; ephemeral ones are only forwarded. Numbers outside the four ranges are refused.

The canonical bytes are the UTF-8 of the JSON array ["posthouse-event-v1", pubkey, created_at_ns, kind, tags,
content] without spaces, as msgspec writes it. A change would invalidate every existing signature: introduce a new
version name instead. An Event in memory has the right types but proves nothing: `check_structure` checks everything
that needs no key, store or clock; posthouse.keys verifies the signature. The two time rules are separate because a
retry of an accepted event gets its answer even after the event has expired. Reading JSON is strict: two readers must
never see two different events in one text. A coordinate `kind:pubkey:d` addresses the latest replaceable or addressable
event.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from blake3 import blake3

from posthouse.model import limits
from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import FenceTag
from posthouse.model.lock_scope import validate_resource
from posthouse.model.node import DEFAULT_MESH, NODE_ID, validate_mesh_name, validate_node_id
from posthouse.model.strict_json import refuse_duplicate_keys, write_ns_as_number

DELETION = 5
MESSAGE = 1000
CONFIRMATION = 1001
RECEIPT = 1002
KEY_ROTATION = 10001
PROFILE = 10002
RECOVERY_KEY = 10003
PRESENCE = 20001
SIGNAL = 20002
AUTHENTICATION = 22242
LAKE_ROOT = 30101
#: kinds that are not published as other events -> what for
RESERVED_KINDS = {
    KEY_ROTATION: "key rotation, which POST /v1/keys/rotations accepts",
    PRESENCE: "presence",
    SIGNAL: "signals",
}
#: kinds that readers of messages publish about them: the right to read is enough
READER_KINDS = frozenset({CONFIRMATION, RECEIPT})


class KindClass(enum.StrEnum):
    """How events of a kind are stored."""

    NORMAL = "normal"
    REPLACEABLE = "replaceable"
    EPHEMERAL = "ephemeral"
    ADDRESSABLE = "addressable"


REPLACEABLE_KINDS = range(10_000, 20_000)
EPHEMERAL_KINDS = range(20_000, 30_000)
ADDRESSABLE_KINDS = range(30_000, 40_000)
KIND_MAX = ADDRESSABLE_KINDS[-1]
_CLASSES = (KindClass.NORMAL, KindClass.REPLACEABLE, KindClass.EPHEMERAL, KindClass.ADDRESSABLE)


def kind_class(kind: int) -> KindClass:
    """Return how events of a kind are stored, or raise kind_invalid."""
    if not 1 <= kind <= KIND_MAX:
        raise error("kind_invalid", kind=kind)
    return _CLASSES[kind // 10_000]


def is_replacing(kind: int) -> bool:
    """Return True if the latest event of a kind replaces the earlier ones of its key."""
    return 10_000 <= kind <= 19_999 or 30_000 <= kind <= 39_999


def is_ephemeral(kind: int) -> bool:
    """Return True if events of a kind are forwarded and not stored."""
    return 20_000 <= kind <= 29_999


def is_addressable(kind: int) -> bool:
    """Return True if events of a kind need a d tag."""
    return 30_000 <= kind <= 39_999


EVENT_VERSION = "posthouse-event-v1"
_ENCODER = msgspec.json.Encoder()


def canonical_event_bytes(
    pubkey: str, created_at_ns: int, kind: int, tags: Sequence[Sequence[str]], content: str
) -> bytes:
    """Return the canonical bytes of the fields, or raise the code of the first invalid one."""
    _check_fields(pubkey, created_at_ns, kind, tags, content)
    return encode_canonical(pubkey, created_at_ns, kind, tags, content)


def encode_canonical(pubkey: str, created_at_ns: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> bytes:
    """Return the canonical bytes of fields whose types were checked before."""
    try:
        return _ENCODER.encode((EVENT_VERSION, pubkey, created_at_ns, kind, tags, content))
    except UnicodeEncodeError as fault:
        raise error("event_text_invalid", field="a tag or the content", reason="a lone surrogate") from fault


def event_id(canonical: bytes) -> str:
    """Return the id of an event: BLAKE3-256 of its canonical bytes, in hexadecimal."""
    return blake3(canonical).hexdigest()


def _check_fields(pubkey: str, created_at_ns: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> None:
    for name, number in (("created_at_ns", created_at_ns), ("kind", kind)):
        if type(number) is not int:
            raise error("event_field_type", field=name, reason=f"{number!r} is not an integer")
    if not 0 <= created_at_ns <= limits.INT64_MAX:
        raise error("event_created_at_range", created_at_ns=created_at_ns)
    for name, text in (("pubkey", pubkey), ("content", content)):
        if type(text) is not str:
            raise error("event_field_type", field=name, reason="it is not a string")
    if not isinstance(tags, list | tuple):
        raise error("event_field_type", field="tags", reason="it is not a list of lists of strings")
    for tag in tags:
        if not isinstance(tag, list | tuple) or any(type(value) is not str for value in tag):
            raise error("event_field_type", field="tags", reason="a tag is not a list of strings")


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
        """Return the bytes that its id and signature cover."""
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
        """Return the first value of the first tag of a name, or None without tag or value."""
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
        """Unix seconds after which the event is not served; valid only after check_structure."""
        text = self.value("expiration")
        return None if text is None else int(text)

    @property
    def replace_key(self) -> tuple[str, int, str]:
        """The key under which the latest replaceable or addressable event replaces earlier ones."""
        return self.pubkey, self.kind, self.d

    def is_newer_than(self, other: Event) -> bool:
        """Return True if this event replaces another of the same key: the larger (created_at_ns, id) wins."""
        return (self.created_at_ns, self.id) > (other.created_at_ns, other.id)

    def is_expired(self, now_ns: int) -> bool:
        """Return True if the event has expired."""
        expiration_s = self.expiration_s
        return expiration_s is not None and expiration_s * limits.SECOND_NS <= now_ns


_DECODER = msgspec.json.Decoder(Event)
_FIELDS = frozenset(Event.__struct_fields__)


def encode_event(event: Event) -> bytes:
    """Return the event as compact JSON, in the order of its fields."""
    return _ENCODER.encode(event)


def decode_event(data: bytes | msgspec.Raw) -> Event:
    """Return the event in a JSON text, or raise the code of its first fault."""
    return read_event(data)[0]


def read_event(data: bytes | msgspec.Raw) -> tuple[Event, bytes]:
    """Return the event in a JSON text and its form by `encode_event`, or raise the code of its first fault."""
    raw = bytes(data)
    if len(raw) > limits.EVENT_MAX_JSON_BYTES:
        raise error("event_too_large", bytes=len(raw), limit=limits.EVENT_MAX_JSON_BYTES)
    try:
        event = _DECODER.decode(raw)
    except msgspec.ValidationError as fault:
        event = _decode_ns_text(raw, fault)
    except (ValueError, RecursionError) as fault:
        raise error("json_invalid", reason=str(fault)) from fault
    # msgspec keeps the last of two equal keys. Its own output has no duplicates, so only other texts are checked.
    text = _ENCODER.encode(event)
    if text != raw:
        refuse_duplicate_keys(raw)
    return event, text


def _decode_ns_text(raw: bytes, fault: msgspec.ValidationError) -> Event:
    """Return the event if its only fault is created_at_ns as decimal text, or raise the code of its first fault."""
    numbers = write_ns_as_number(raw)
    if numbers == raw:
        raise _explain(str(fault)) from fault
    try:
        return _DECODER.decode(numbers)
    except msgspec.ValidationError as other:
        raise _explain(str(other)) from other


def _explain(fault: str) -> PosthouseError:
    """Return the error for a message of msgspec, which names the field in back-quotes or in a path."""
    if fault.startswith("Object missing required field"):
        return error("event_field_missing", field=fault.split("`")[1])
    if fault.startswith("Object contains unknown field"):
        return error("event_field_unknown", field=fault.split("`")[1])
    reason, _, path = fault.partition(" - at `$")
    field = path.strip(".`").split("[")[0]
    if field in _FIELDS:
        return error("event_field_type", field=field, reason=reason)
    return error("event_not_object", found=fault.rpartition("got ")[2].strip("`"))


_HEX_64 = re.compile(r"[0-9a-f]{64}")
_SHORT_ID = re.compile(r"[0-9a-f]{8,63}")
_HEX_128 = re.compile(r"[0-9a-f]{128}")
#: begins a batch signature; posthouse.keys.batch_signature
BATCH_PREFIX = "b1."
_BATCH = re.compile(r"b1\.[A-Za-z0-9_-]{131,344}")  # 1 to 6 hashes in its path
_MARKED = re.compile(r"[a-z][a-z0-9]{0,7}\.")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_ARMOR_BEGIN = "-----BEGIN SSH SIGNATURE-----\n"
_ARMOR_END = "-----END SSH SIGNATURE-----"
#: tags that rules depend on: with two of them it would be ambiguous which one counts
_SINGLE = ("mesh", "expiration", "fence")


def check_structure(event: Event) -> bytes:
    """Return the canonical bytes of a well-formed event, or raise the code of its first fault.

    Only the form of the signature is checked; the caller verifies it over the returned bytes.
    """
    _check_forms(event)
    check_tags(event.kind, event.tags)
    canonical = event.canonical()
    if len(canonical) > limits.EVENT_MAX_CANONICAL_BYTES:
        raise error("event_too_large", bytes=len(canonical), limit=limits.EVENT_MAX_CANONICAL_BYTES)
    expected = event_id(canonical)
    if event.id != expected:
        raise error("event_id_mismatch", expected=expected)
    return canonical


def check_new_event(pubkey: str, created_at_ns: int, kind: int, tags: Sequence[Tag], content: str) -> bytes:
    """Return the canonical bytes of an event that is about to be signed, or raise the code of its first fault."""
    _check_fields(pubkey, created_at_ns, kind, tags, content)
    check_tags(kind, tags)
    canonical = encode_canonical(pubkey, created_at_ns, kind, tags, content)
    if len(canonical) > limits.EVENT_MAX_CANONICAL_BYTES:
        raise error("event_too_large", bytes=len(canonical), limit=limits.EVENT_MAX_CANONICAL_BYTES)
    return canonical


def check_publishable(event: Event) -> None:
    """Raise kind_not_publishable for an authentication event: a reader of a published one could log in with it."""
    if event.kind == AUTHENTICATION:
        raise error("kind_not_publishable", kind=event.kind)


def check_times(event: Event, now_ns: int) -> None:
    """Raise event_created_at_ahead or event_expired, measured by the relay's clock."""
    ahead_ns = event.created_at_ns - now_ns
    if ahead_ns > limits.CREATED_AT_MAX_AHEAD_NS:
        raise error(
            "event_created_at_ahead",
            ahead_s=ahead_ns // limits.SECOND_NS,
            limit_s=limits.CREATED_AT_MAX_AHEAD_NS // limits.SECOND_NS,
        )
    if event.is_expired(now_ns):
        raise error("event_expired", expiration=event.expiration_s)


def is_event_id(text: str) -> bool:
    """Return True if a string has the form of an event id."""
    return _HEX_64.fullmatch(text) is not None


def is_short_event_id(text: str) -> bool:
    """Return True if a string can be the beginning of an event id, long enough to name one message of a host."""
    return _SHORT_ID.fullmatch(text) is not None


def check_tags(kind: int, tags: Sequence[Tag]) -> None:
    """Raise the code of the first fault in kind and tags, including the rules of the tags that this module reads."""
    is_addressable = kind_class(kind) is KindClass.ADDRESSABLE
    if len(tags) > limits.EVENT_MAX_TAGS:
        raise error("tags_too_many", count=len(tags), limit=limits.EVENT_MAX_TAGS)
    names: dict[str, Tag] = {}
    for index, tag in enumerate(tags):
        _check_tag_size(index, tag)
        if tag[0] in _SINGLE and tag[0] in names:
            raise error("tag_repeated", tag=tag[0])
        names.setdefault(tag[0], tag)
    if is_addressable and len(names.get("d", ())) < 2:
        raise error("address_needs_d")
    _check_known_tags(kind, names)


def _check_forms(event: Event) -> None:
    if not is_event_id(event.id):
        raise error("event_id_form")
    if NODE_ID.fullmatch(event.pubkey) is None:
        raise error("event_pubkey_form", reason="it is not `ed25519:` and 64 hexadecimal digits")
    if not 0 <= event.created_at_ns <= limits.INT64_MAX:
        raise error("event_created_at_range", created_at_ns=event.created_at_ns)
    if _HEX_128.fullmatch(event.sig) is None:
        _check_form_not_native(event.kind, event.sig)


def _check_form_not_native(kind: int, sig: str) -> None:
    if _is_armor(sig) or (_BATCH.fullmatch(sig) is not None and kind != AUTHENTICATION):
        return
    if is_unknown_form(sig):
        raise error("signature_form_unknown", form=sig.partition(".")[0])
    raise error("event_sig_form")


def is_unknown_form(sig: str) -> bool:
    """Return True for a signature with the mark of a form that this version does not know, such as `b2.`."""
    return _MARKED.match(sig) is not None and not sig.startswith(BATCH_PREFIX)


def _is_armor(sig: str) -> bool:
    return (
        len(sig) <= limits.SIGNATURE_ARMOR_MAX_CHARS
        and sig.startswith(_ARMOR_BEGIN)
        and sig.rstrip("\n").endswith(_ARMOR_END)
    )


def _check_tag_size(index: int, tag: Tag) -> None:
    if not tag or not tag[0]:
        raise error("tag_empty", index=index)
    for value in tag:
        # UTF-8 has at most four bytes per character, so most values are accepted without encoding them
        if len(value) * 4 > limits.TAG_VALUE_MAX_BYTES:
            size = len(value.encode("utf-8", "surrogatepass"))
            if size > limits.TAG_VALUE_MAX_BYTES:
                raise error("tag_value_too_long", index=index, bytes=size, limit=limits.TAG_VALUE_MAX_BYTES)


def _check_known_tags(kind: int, names: dict[str, Tag]) -> None:
    if (mesh := names.get("mesh")) is not None:
        if len(mesh) != 2:
            raise error("tag_malformed", tag="mesh", reason="it must have exactly one value")
        validate_mesh_name(mesh[1])
    if (expiration := names.get("expiration")) is not None and (
        len(expiration) != 2 or _DECIMAL.fullmatch(expiration[1]) is None
    ):
        raise error("tag_malformed", tag="expiration", reason="it is not one number of unix seconds")
    if (fence := names.get("fence")) is not None:
        _parse_fence_tag(kind, fence)


_KIND = re.compile(r"[1-9][0-9]{4}")


class Coordinate(NamedTuple):
    """The address of the latest replaceable or addressable event."""

    kind: int
    pubkey: str
    d: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.pubkey}:{self.d}"


def coordinate_of(event: Event) -> Coordinate:
    """Return the coordinate of an event of a replacing kind."""
    return Coordinate(event.kind, event.pubkey, event.d)


def parse_coordinate(text: str) -> Coordinate:
    """Return the coordinate in a string, or raise coordinate_invalid."""
    parts = text.split(":", 3)
    if len(parts) != 4:
        raise error("coordinate_invalid", coordinate=text, reason="it must have four parts")
    kind, scheme, digits, d = parts
    if _KIND.fullmatch(kind) is None or not is_replacing(int(kind)):
        raise error("coordinate_invalid", coordinate=text, reason="its kind is not replaceable or addressable")
    try:
        return Coordinate(int(kind), validate_node_id(f"{scheme}:{digits}"), d)
    except PosthouseError as fault:
        raise error("coordinate_invalid", coordinate=text, reason=str(fault)) from fault


_FENCE_TOKEN = re.compile(r"[1-9][0-9]{0,18}")


def read_fence_tag(event: Event) -> FenceTag | None:
    """Return the fence tag of an event, None if it has none, or raise tag_malformed."""
    tag = event.tag("fence")
    return None if tag is None else _parse_fence_tag(event.kind, tag)


def _parse_fence_tag(kind: int, tag: Tag) -> FenceTag:
    if not is_replacing(kind):
        raise error("tag_malformed", tag="fence", reason="only replaceable and addressable events are fenced")
    if len(tag) not in (3, 4) or (len(tag) == 4 and tag[3] != "strict"):
        raise error("tag_malformed", tag="fence", reason='it is not a resource, a token and optionally "strict"')
    if _FENCE_TOKEN.fullmatch(tag[2]) is None or int(tag[2]) > limits.INT64_MAX:
        raise error("tag_malformed", tag="fence", reason="the token is not a positive integer")
    return FenceTag(validate_resource(tag[1]), int(tag[2]), len(tag) == 4)
