from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import Refused
from posthouse.model.event import (
    Coordinate,
    Event,
    KindClass,
    coordinate_of,
    decode_event,
    encode_event,
    is_addressable,
    is_ephemeral,
    is_replacing,
    kind_class,
    parse_coordinate,
)
from tests.model.strategies import NODES, TAGS, TEXTS, make_event

EVENTS = st.builds(
    make_event,
    pubkey=NODES,
    created_at_ns=st.integers(0, 2**63 - 1),
    kind=st.integers(1, 39_999),
    tags=TAGS,
    content=TEXTS,
)
GOOD: dict[str, Any] = json.loads(encode_event(make_event(tags=(("t", "a"),), content="x")))


@given(EVENTS)
def test_an_event_survives_json_in_any_spelling(event: Event) -> None:
    data = encode_event(event)
    assert decode_event(data) == event
    assert decode_event(msgspec.Raw(data)) == event
    plain = json.loads(data)
    assert decode_event(json.dumps(plain, indent=2, sort_keys=True).encode()) == event


@pytest.mark.parametrize("name", list(GOOD))
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(Refused) as caught:
        decode_event(json.dumps({key: value for key, value in GOOD.items() if key != name}).encode())
    assert (caught.value.code, caught.value.fields["field"]) == ("event_field_missing", name)


@pytest.mark.parametrize("name", list(GOOD))
def test_a_field_given_twice_is_refused(name: str) -> None:
    text = json.dumps(GOOD)
    twice = text[:-1] + f", {json.dumps(name)}: {json.dumps(GOOD[name])}" + "}"
    assert json.loads(twice) == GOOD
    with pytest.raises(Refused) as caught:
        decode_event(twice.encode())
    assert (caught.value.code, caught.value.fields["key"]) == ("json_duplicate_key", name)


@pytest.mark.parametrize(
    ("field", "spelling"),
    [
        ("kind", "1.0"),
        ("kind", "1e0"),
        ("kind", "true"),
        ("kind", '"1"'),
        ("kind", "null"),
        ("created_at_ns", "1.5"),
        ("created_at_ns", "1700000000000000000.0"),
        ("created_at_ns", "false"),
        ("tags", "{}"),
        ("tags", '["t"]'),
        ("tags", "[[1]]"),
        ("tags", "[[null]]"),
        ("tags", '[[["t"]]]'),
        ("content", "1"),
        ("content", "null"),
        ("sig", "[]"),
        ("pubkey", "{}"),
        ("id", "0"),
    ],
)
def test_a_field_of_another_type_is_named(field: str, spelling: str) -> None:
    parts = [f"{json.dumps(key)}:{spelling if key == field else json.dumps(value)}" for key, value in GOOD.items()]
    with pytest.raises(Refused) as caught:
        decode_event(("{" + ",".join(parts) + "}").encode())
    assert (caught.value.code, caught.value.fields["field"]) == ("event_field_type", field)


def test_an_unknown_field_is_named_however_deep_its_value() -> None:
    for value in (1, json.loads("[" * 900 + "]" * 900)):
        with pytest.raises(Refused) as caught:
            decode_event(json.dumps(GOOD | {"extra": value}).encode())
        assert (caught.value.code, caught.value.fields["field"]) == ("event_field_unknown", "extra")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "json_invalid"),
        (b"{", "json_invalid"),
        (b"[]", "event_not_object"),
        (b"null", "event_not_object"),
        (b"1", "event_not_object"),
        (b"[" * 100_000, "event_not_object"),
        (json.dumps(GOOD).encode() + b" 1", "json_invalid"),
        (json.dumps(GOOD).replace('"x"', '"\\ud800"').encode(), "json_invalid"),
        (json.dumps(GOOD).encode().replace(b'"x"', b'"\xff"'), "json_invalid"),
        (json.dumps(GOOD).encode().replace(b'"x"', b'"\x00"'), "json_invalid"),
        (json.dumps(GOOD).encode("utf-16"), "json_invalid"),
        (b" " * (1024 * 1024 + 1), "event_too_large"),
    ],
)
def test_text_that_is_no_event_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(Refused) as caught:
        decode_event(data)
    assert caught.value.code == code


def test_tags_are_read_by_name() -> None:
    event = make_event(tags=(("p", "1"), ("x",), ("p", "2", "more"), ("p",), ("d", "one"), ("d", "two")))
    assert event.values("p") == ["1", "2"]
    assert event.value("p") == "1"
    assert event.value("x") is None
    assert event.tag("x") == ("x",)
    assert event.tag("y") is None
    assert event.d == "one"
    assert event.mesh == "main"
    assert make_event(tags=(("mesh", "lab"),)).mesh == "lab"
    assert make_event().d == ""


@given(first=EVENTS, second=EVENTS)
def test_one_of_two_events_is_the_latest(first: Event, second: Event) -> None:
    newer = [first.is_newer_than(second), second.is_newer_than(first)]
    assert newer.count(True) == (0 if (first.id, first.created_at_ns) == (second.id, second.created_at_ns) else 1)


def test_at_equal_times_the_larger_id_is_the_latest() -> None:
    low, high = sorted((make_event(content="a"), make_event(content="b")), key=lambda event: event.id)
    later = make_event(created_at_ns=low.created_at_ns + 1)
    assert high.is_newer_than(low)
    assert later.is_newer_than(high)


@given(st.integers(-5, 50_000))
def test_kinds_fall_into_their_ranges(kind: int) -> None:
    ranges = {
        KindClass.NORMAL: range(1, 10_000),
        KindClass.REPLACEABLE: range(10_000, 20_000),
        KindClass.EPHEMERAL: range(20_000, 30_000),
        KindClass.ADDRESSABLE: range(30_000, 40_000),
    }
    expected = next((name for name, numbers in ranges.items() if kind in numbers), None)
    if expected is None:
        with pytest.raises(Refused) as caught:
            kind_class(kind)
        assert caught.value.code == "kind_invalid"
    else:
        assert kind_class(kind) is expected
    assert is_replacing(kind) == (expected in (KindClass.REPLACEABLE, KindClass.ADDRESSABLE))
    assert is_ephemeral(kind) == (expected is KindClass.EPHEMERAL)
    assert is_addressable(kind) == (expected is KindClass.ADDRESSABLE)


@given(kind=st.integers(10_000, 19_999) | st.integers(30_000, 39_999), pubkey=NODES, d=TEXTS)
def test_a_coordinate_reads_back_with_any_d(kind: int, pubkey: str, d: str) -> None:
    coordinate = Coordinate(kind, pubkey, d)
    assert parse_coordinate(str(coordinate)) == coordinate
    assert coordinate_of(make_event(pubkey, kind=kind, tags=(("d", d),))) == coordinate


@pytest.mark.parametrize(
    "text",
    [
        "",
        "30000",
        "30000:ed25519",
        "30000:ed25519:" + "a" * 64,
        "1:ed25519:" + "a" * 64 + ":",
        "20000:ed25519:" + "a" * 64 + ":x",
        "030000:ed25519:" + "a" * 64 + ":x",
        "30000:ed25519:" + "A" * 64 + ":x",
        "30000:rsa:" + "a" * 64 + ":x",
        "40000:ed25519:" + "a" * 64 + ":x",
        " 30000:ed25519:" + "a" * 64 + ":x",
    ],
)
def test_other_texts_are_no_coordinates(text: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_coordinate(text)
    assert caught.value.code == "coordinate_invalid"
