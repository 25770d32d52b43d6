"""One record by itself: of a known type, with every field its type promises, and true to what it carries.

A Pinch confirm is signed by its reader's key, which stands in its address; an envelope of the bus says what its record
says. Everything else needs other records, and is the rules' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from posthouse.journal.records import TYPES
from posthouse.keys.signature import verify
from posthouse.model.errors import PosthouseError
from posthouse.model.node import node_from_key
from posthouse.model.pinch.address import parse_address
from posthouse.model.pinch.signed import confirm_bytes
from posthouse.pipeline.audit.rule import Entry

Fault = tuple[str, str]
#: type -> the fields every record of it has
ALWAYS = {
    name: tuple(field for field, meaning in shape.body.items() if "always" in meaning) for name, shape in TYPES.items()
}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def read_body(type_: str, text: str) -> tuple[dict[str, Any] | None, Fault | None]:
    """Return the body of a record, or what keeps it from being one."""
    always = ALWAYS.get(type_)
    if always is None:
        return None, ("record_type_unknown", f"records of the type {type_!r} are not known")
    try:
        body = _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError) as fault:
        return None, ("record_body_invalid", f"the body of a {type_} cannot be read: {fault}")
    for name in always:
        if name not in body:
            return None, ("record_body_invalid", f"a {type_} without {name}")
    return body, None


def check_record(entry: Entry) -> Iterator[Fault]:
    """Yield what is wrong with a record that could be read."""
    check = _CHECKS.get(entry.type)
    if check is not None:
        yield from check(entry)


def _check_published(entry: Entry) -> Iterator[Fault]:
    envelope = entry.body["envelope"]
    told = (envelope.get("id"), envelope.get("from")) if isinstance(envelope, dict) else (None, None)
    if told != (entry.ref, entry.actor):
        yield "bus_disagrees", f"the envelope in it is {told[0]} from {told[1]}"


def _check_confirm(entry: Entry) -> Iterator[Fault]:
    body = entry.body
    try:
        node = node_from_key(parse_address(entry.actor).key)
        verify(node, confirm_bytes(entry.ref.encode(), body["timestamp"]), body["signature"])
    except (PosthouseError, OverflowError, AttributeError, TypeError) as fault:
        yield "pinch_signature_invalid", f"of {entry.actor}: {fault}"


_CHECKS: dict[str, Callable[[Entry], Iterator[Fault]]] = {
    "bus.published": _check_published,
    "pinch.confirmed": _check_confirm,
}
