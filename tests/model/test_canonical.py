from __future__ import annotations

import json
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import Refused
from posthouse.model.event import canonical_event_bytes, event_id
from tests.model.strategies import NODES, TAGS, TEXTS

NODE = "ed25519:" + "a" * 64
SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quoted(text: str) -> str:
    """An encoder of its own, straight from the words of the protocol."""
    return '"' + "".join(SHORT.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 0x20 else c) for c in text) + '"'


@given(
    pubkey=NODES,
    created_at_ns=st.integers(0, 2**63 - 1),
    kind=st.integers(1, 39_999),
    tags=TAGS,
    content=TEXTS,
)
def test_canonical_bytes_are_what_the_protocol_says(
    pubkey: str, created_at_ns: int, kind: int, tags: tuple[tuple[str, ...], ...], content: str
) -> None:
    data = canonical_event_bytes(pubkey, created_at_ns, kind, tags, content)
    shown = ",".join("[" + ",".join(quoted(value) for value in tag) + "]" for tag in tags)
    expected = f'["posthouse-event-v1",{quoted(pubkey)},{created_at_ns},{kind},[{shown}],{quoted(content)}]'
    assert data == expected.encode()
    assert json.loads(data) == ["posthouse-event-v1", pubkey, created_at_ns, kind, [list(t) for t in tags], content]
    assert event_id(data) == blake3(data).hexdigest()


def test_every_control_character_has_its_escape() -> None:
    text = "".join(map(chr, range(0x20))) + '"\\/\x7f\x80\u2028é☕\U0001f600'
    data = canonical_event_bytes(NODE, 0, 1, (), text)
    assert data.endswith(
        (
            '"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e\\u000f'
            "\\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001a\\u001b\\u001c\\u001d\\u001e\\u001f"
            '\\"\\\\/\x7f\x80\u2028é☕\U0001f600"]'
        ).encode()
    )


def test_a_vector_that_must_never_change() -> None:
    data = canonical_event_bytes(NODE, 1_700_000_000_000_000_000, 1, (("mesh", "main"), ("t", "a.b")), "café ☕\n")
    assert (
        data
        == (
            '["posthouse-event-v1","ed25519:'
            + "a" * 64
            + '",1700000000000000000,1,[["mesh","main"],["t","a.b"]],"café ☕\\n"]'
        ).encode()
    )
    assert event_id(data) == "4da016f0ef2e8a2bb04114677a38b74f5585fd687429075f26e04586f4619401"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"created_at_ns": 1.0}, "event_field_type"),
        ({"created_at_ns": True}, "event_field_type"),
        ({"created_at_ns": -1}, "event_created_at_range"),
        ({"created_at_ns": 2**63}, "event_created_at_range"),
        ({"kind": 1.0}, "event_field_type"),
        ({"kind": "1"}, "event_field_type"),
        ({"content": None}, "event_field_type"),
        ({"content": b"x"}, "event_field_type"),
        ({"content": "\ud800"}, "event_text_invalid"),
        ({"tags": (("t", "\udc00"),)}, "event_text_invalid"),
        ({"tags": (("t", 1),)}, "event_field_type"),
        ({"tags": ("t",)}, "event_field_type"),
        ({"tags": {"t": "a"}}, "event_field_type"),
        ({"tags": "t"}, "event_field_type"),
    ],
)
def test_fields_without_canonical_bytes_are_refused(change: dict[str, Any], code: str) -> None:
    fields: dict[str, Any] = {"pubkey": NODE, "created_at_ns": 1, "kind": 1, "tags": (), "content": ""}
    with pytest.raises(Refused) as caught:
        canonical_event_bytes(**(fields | change))
    assert caught.value.code == code
