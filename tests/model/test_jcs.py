from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import PosthouseError, Refused
from posthouse.model.strict_json import jcs, parse_jcs

SAFE = st.integers(-(2**53) + 1, 2**53 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda f: abs(f) < 2**53 or abs(f) >= 1e21)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | SAFE | FLOATS | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)


@given(VALUES)
def test_canonical_text_reads_back_to_its_value(value: Any) -> None:
    text = jcs(value)
    assert parse_jcs(text) == value


@given(VALUES)
def test_another_spelling_is_read_only_if_it_is_the_canonical_one(value: Any) -> None:
    for spelling in (json.dumps(value), json.dumps(value, indent=1), json.dumps(value, ensure_ascii=False)):
        if spelling == jcs(value):
            assert parse_jcs(spelling) == value
        else:
            with pytest.raises(PosthouseError):
                parse_jcs(spelling)


@given(st.dictionaries(KEYS, st.just(0), max_size=8))
def test_keys_are_ordered_by_their_utf16_units(value: dict[str, int]) -> None:
    keys = [json.loads(part) for part in _keys_of(jcs(value))]
    assert keys == sorted(
        value, key=lambda key: struct.unpack(f">{len(key.encode('utf-16be')) // 2}H", key.encode("utf-16be"))
    )


def _keys_of(text: str) -> list[str]:
    keys: list[str] = []
    json.loads(text, object_pairs_hook=lambda pairs: keys.extend(json.dumps(key) for key, _ in pairs))
    return keys


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"10": 1, "9": 2, "1": 3}, '{"1":3,"10":1,"9":2}'),
        ({"\ufb33": 1, "\U0001f600": 2}, '{"\U0001f600":2,"\ufb33":1}'),
        ({"€": 1, "\r": 2, "\u0080": 3, "ö": 4}, '{"\\r":2,"\u0080":3,"ö":4,"€":1}'),
        (1.0, "1"),
        (-0.0, "0"),
        (1e21, "1e+21"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (0.1, "0.1"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (333333333.33333329, "333333333.3333333"),
        ('\x00\x1f\x7f/"\\\b', '"\\u0000\\u001f\x7f/\\"\\\\\\b"'),
        ([], "[]"),
        ({}, "{}"),
    ],
)
def test_vectors(value: Any, text: str) -> None:
    assert jcs(value) == text


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        2**53,
        -(2**53),
        float(2**53),
        1e17,
        {"a": [2**60]},
        "\ud800",
        {"\udc00": 1},
        {1: 2},
        b"x",
        {"a": {2}},
    ],
)
def test_a_value_without_a_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(Refused) as caught:
        jcs(value)
    assert caught.value.code == "not_canonical"


@pytest.mark.parametrize(
    "text",
    [
        ' {"a":1}',
        '{"a": 1}',
        '{"b":1,"a":2}',
        '{"a":1,"a":1}',
        "1.0",
        "1e2",
        "-0",
        "9007199254740992",
        '"\\u0041"',
        '"\\/"',
        '"\\u000A"',
        "NaN",
        "",
        "nul",
        '"\\ud800"',
        "[" * 3000,
    ],
)
def test_text_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(PosthouseError):
        parse_jcs(text)
