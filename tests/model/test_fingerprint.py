from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import Refused
from posthouse.model.message import DestinationKind, Priority, fingerprint, fingerprint_prefix, meta_field
from tests.model.test_jcs import VALUES

FIELDS = st.tuples(
    st.sampled_from(DestinationKind),
    st.sampled_from(["", "a", "b", "ab"]),
    st.sampled_from(["", "a", "next"]),
    st.sampled_from(Priority),
    st.sampled_from(["", '{"a":1}', "[]", "a"]),
    st.sampled_from([b"", b"a", b"\x00"]),
)


@pytest.mark.parametrize(
    ("kind", "ref", "reply_to", "priority", "meta", "body", "expected"),
    [
        ("dm", "alice", "", "next", None, "hello", "7c09ad87bc0963af7597220b97da5788dadae89471fcc1c6685f2f53fdd204cf"),
        (
            "dm",
            "alice",
            "",
            "next",
            {"z": 1, "a": 2},
            "hello",
            "a02a854409d02f8cb3850dd10a499a21cfd8cb4fca817d148c5cb97560bd870d",
        ),
        (
            "topic",
            "alerts",
            "",
            "now",
            None,
            "café ☕",
            "a3856fc85bf873a22e146531f8de744a43599d42d099320e91f5688045482c2f",
        ),
        (
            "dm",
            "a" * 64,
            "msg_01",
            "low",
            {"k": [1, True, None]},
            "",
            "86f70cacd857f8a70ef4a8703a66df204eafec61bbe42c9aa4e7baa8154e8441",
        ),
    ],
)
def test_vectors(kind: str, ref: str, reply_to: str, priority: str, meta: Any, body: str, expected: str) -> None:
    digest = fingerprint(DestinationKind(kind), ref, reply_to, Priority(priority), meta_field(meta), body.encode())
    assert digest.hex() == expected
    assert fingerprint_prefix(digest) == expected[:16]


@given(first=FIELDS, second=FIELDS)
def test_different_requests_have_different_fingerprints(first: Any, second: Any) -> None:
    assert (fingerprint(*first) == fingerprint(*second)) == (first == second)


@given(meta=VALUES)
def test_meta_counts_by_its_canonical_form(meta: Any) -> None:
    text = meta_field(meta)
    digest = fingerprint(DestinationKind.TOPIC, "a", None, None, text, b"")
    fields = ["1", "topic", "a", "", "next", text, hashlib.sha256(b"").hexdigest()]
    assert digest == hashlib.sha256("\0".join(fields).encode()).digest()
    assert (text == "") == (meta is None or meta == {})


def test_absent_null_and_empty_meta_are_the_same_request() -> None:
    base = fingerprint(DestinationKind.TOPIC, "a", None, None, "", b"")
    assert meta_field(None) == meta_field({}) == ""
    for text in ("null", "{}"):
        assert fingerprint(DestinationKind.TOPIC, "a", "", Priority.NEXT, text, b"") == base
    assert fingerprint(DestinationKind.TOPIC, "a", None, None, meta_field([]), b"") != base


@pytest.mark.parametrize("position", [1, 2, 4])
@pytest.mark.parametrize("bad", ["a\0b", "\ud800"])
def test_a_nul_or_a_lone_surrogate_in_a_field_is_refused(position: int, bad: str) -> None:
    fields: list[Any] = [DestinationKind.TOPIC, "a", "", Priority.NEXT, "", b""]
    fields[position] = bad
    with pytest.raises(Refused) as caught:
        fingerprint(*fields)
    assert caught.value.code == "value_invalid"
