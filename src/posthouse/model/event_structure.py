"""Structure of an event: everything that can be judged without a key, a store or a clock, and the two time rules.

The time rules stand apart because they are applied after the idempotency record was looked up: a retry of an
accepted event must get its answer also when the event has expired meanwhile.
"""

from __future__ import annotations

import re

from posthouse.model.canonical import event_id
from posthouse.model.errors import error
from posthouse.model.event import Event, Tag
from posthouse.model.fence import read_fence_tag
from posthouse.model.kinds import AUTHENTICATION, is_addressable, kind_class
from posthouse.model.limits import (
    CREATED_AT_MAX_AHEAD_NS,
    EVENT_MAX_CANONICAL_BYTES,
    EVENT_MAX_TAGS,
    INT64_MAX,
    SECOND_NS,
    SIGNATURE_ARMOR_MAX_CHARS,
    TAG_VALUE_MAX_BYTES,
)
from posthouse.model.node import is_node_id, validate_mesh_name

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_HEX_128 = re.compile(r"[0-9a-f]{128}")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_ARMOR_BEGIN = "-----BEGIN SSH SIGNATURE-----\n"
_ARMOR_END = "-----END SSH SIGNATURE-----"
#: tags that decide something: a second one would make it a matter of taste which one counts
_SINGLE = ("mesh", "expiration", "fence")


def check_structure(event: Event) -> bytes:
    """Return the canonical bytes of a well-formed event, or raise the code of its first fault.

    The signature is judged by its form only; the caller verifies it over the bytes returned.
    """
    _check_forms(event)
    kind_class(event.kind)
    check_tags(event)
    canonical = event.canonical()
    if len(canonical) > EVENT_MAX_CANONICAL_BYTES:
        raise error("event_too_large", bytes=len(canonical), limit=EVENT_MAX_CANONICAL_BYTES)
    expected = event_id(canonical)
    if event.id != expected:
        raise error("event_id_mismatch", expected=expected)
    return canonical


def check_publishable(event: Event) -> None:
    """Raise kind_not_publishable for an authentication event: who could publish it could log in with it."""
    if event.kind == AUTHENTICATION:
        raise error("kind_not_publishable", kind=event.kind)


def check_times(event: Event, now_ns: int) -> None:
    """Raise event_created_at_ahead or event_expired by the relay's clock."""
    ahead_ns = event.created_at_ns - now_ns
    if ahead_ns > CREATED_AT_MAX_AHEAD_NS:
        raise error(
            "event_created_at_ahead",
            ahead_s=ahead_ns // SECOND_NS,
            limit_s=CREATED_AT_MAX_AHEAD_NS // SECOND_NS,
        )
    if event.is_expired(now_ns):
        raise error("event_expired", expiration=event.expiration_s)


def is_event_id(text: str) -> bool:
    """Tell whether a text has the form of an event id."""
    return _HEX_64.fullmatch(text) is not None


def check_tags(event: Event) -> None:
    """Raise the code of the first fault in the tags, those this module knows the meaning of included."""
    if len(event.tags) > EVENT_MAX_TAGS:
        raise error("tags_too_many", count=len(event.tags), limit=EVENT_MAX_TAGS)
    names: dict[str, Tag] = {}
    for index, tag in enumerate(event.tags):
        _check_tag_size(index, tag)
        if tag[0] in _SINGLE and tag[0] in names:
            raise error("tag_repeated", tag=tag[0])
        names.setdefault(tag[0], tag)
    if is_addressable(event.kind) and len(names.get("d", ())) < 2:
        raise error("address_needs_d")
    _check_known_tags(event, names)


def _check_forms(event: Event) -> None:
    if not is_event_id(event.id):
        raise error("event_id_form")
    if not is_node_id(event.pubkey):
        raise error("event_pubkey_form", reason="it has another form")
    if not 0 <= event.created_at_ns <= INT64_MAX:
        raise error("event_created_at_range", created_at_ns=event.created_at_ns)
    if _HEX_128.fullmatch(event.sig) is None and not _is_armor(event.sig):
        raise error("event_sig_form")


def _is_armor(sig: str) -> bool:
    return (
        len(sig) <= SIGNATURE_ARMOR_MAX_CHARS and sig.startswith(_ARMOR_BEGIN) and sig.rstrip("\n").endswith(_ARMOR_END)
    )


def _check_tag_size(index: int, tag: Tag) -> None:
    if not tag or not tag[0]:
        raise error("tag_empty", index=index)
    for value in tag:
        # a text has at most four bytes for each character, so that most need no encoding to be judged
        if len(value) * 4 > TAG_VALUE_MAX_BYTES:
            size = len(value.encode("utf-8", "surrogatepass"))
            if size > TAG_VALUE_MAX_BYTES:
                raise error("tag_value_too_long", index=index, bytes=size, limit=TAG_VALUE_MAX_BYTES)


def _check_known_tags(event: Event, names: dict[str, Tag]) -> None:
    if (mesh := names.get("mesh")) is not None:
        if len(mesh) != 2:
            raise error("tag_malformed", tag="mesh", reason="it has not exactly one value")
        validate_mesh_name(mesh[1])
    if (expiration := names.get("expiration")) is not None and (
        len(expiration) != 2 or _DECIMAL.fullmatch(expiration[1]) is None
    ):
        raise error("tag_malformed", tag="expiration", reason="it is not one number of unix seconds")
    if "fence" in names:
        read_fence_tag(event)
