from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import Refused
from posthouse.model.strict_json import check_json_value, exceeds, parse_json

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_what_json_writes_is_read_back(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(JSON_VALUES, st.sampled_from([(", ", ": "), (",\n\t", " : "), (",", ":")]))
def test_white_space_between_values_changes_nothing(value: Any, separators: tuple[str, str]) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=False, separators=separators).encode()) == value


def test_white_space_inside_texts_is_kept_and_hides_no_second_key() -> None:
    assert parse_json(b'{ "a" : " b  c ", "d" : [ 1 , 2 ] }') == {"a": " b  c ", "d": [1, 2]}
    with pytest.raises(Refused) as refusal:
        parse_json(b'{ "a" : 1, "a" : 1 }')
    assert refusal.value.code == "json_duplicate_key"


@given(JSON_VALUES, st.integers(0, 200))
def test_value_that_exceeds_a_limit_has_more_bytes_as_json(value: Any, limit: int) -> None:
    if exceeds(value, limit):
        assert len(msgspec.json.encode(value)) > limit


@given(JSON_VALUES)
def test_value_without_escapes_exceeds_a_small_part_of_its_bytes(value: Any) -> None:
    assert exceeds(value, len(msgspec.json.encode(value)) // 64 - 1)


@given(JSON_VALUES)
def test_a_value_that_passes_the_check_survives_the_way_through_json(value: Any) -> None:
    check_json_value(value)
    assert msgspec.json.decode(msgspec.json.encode(value)) == value


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"a":1,"a":1}', "json_duplicate_key"),
        (b'[{"x":{"a":1,"b":2,"a":3}}]', "json_duplicate_key"),
        (b'{"a":1,"\\u0061":1}', "json_duplicate_key"),
        (b"NaN", "json_invalid"),
        (b"[-Infinity]", "json_invalid"),
        (b"1e400", "json_invalid"),
        (b'"\\ud800"', "json_invalid"),
        (b'{"\\udfff":1}', "json_invalid"),
        (b'"\xff"', "json_invalid"),
        (b'"\xed\xa0\x80"', "json_invalid"),
        (b"\xef\xbb\xbf1", "json_invalid"),
        ("1".encode("utf-16"), "json_invalid"),
        (b"", "json_invalid"),
        (b"1 2", "json_invalid"),
        (b"'a'", "json_invalid"),
        (b'"\x01"', "json_invalid"),
        (b"1" * 5000, "json_invalid"),
        (b"[" * 66 + b"]" * 66, "json_too_deep"),
        (b"[" * 100_000, "json_too_deep"),
    ],
)
def test_text_with_more_than_one_meaning_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_json(data)
    assert caught.value.code == code


def test_surrogate_pairs_and_64_levels_are_fine() -> None:
    assert parse_json(b'"\\ud83d\\ude00"') == "\U0001f600"
    assert parse_json(b"[" * 64 + b"]" * 64)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("inf")],
        {"a": {1: 2}},
        {"a": b"x"},
        {1, 2},
        "\ud800",
        {"\ud800": 1},
        2**64,
        -(2**63) - 1,
        object(),
    ],
)
def test_a_value_that_json_would_alter_is_refused(value: Any) -> None:
    with pytest.raises(Refused) as caught:
        check_json_value(value)
    assert caught.value.code == "payload_unserialisable"


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Refused, match="deeper"):
        check_json_value(value)
