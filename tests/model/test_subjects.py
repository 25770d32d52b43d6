from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import Refused
from posthouse.model.subjects import _fault, is_pattern, matches, prefixes, validate_subject, validate_topic
from tests.model.strategies import SUBJECTS, patterns


def regex_of(pattern: str) -> re.Pattern[str]:
    """An oracle of its own: the pattern as a regular expression."""
    parts = [re.escape(token) for token in pattern.split(".")]
    text = r"\.".join(parts).replace(r"\*", r"[^.]+")
    if pattern.split(".")[-1] == ">":
        text = text[: -len(re.escape(">"))] + r"[^.]+(\.[^.]+)*"
    return re.compile(text)


@given(subject=SUBJECTS, pattern=patterns() | SUBJECTS)
def test_matching_agrees_with_a_regular_expression(subject: str, pattern: str) -> None:
    assert matches(subject, pattern) == (regex_of(pattern).fullmatch(subject) is not None)


@pytest.mark.parametrize(
    ("subject", "pattern", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "A.b", False),
        ("a.b", "a.*", True),
        ("a", "a.*", False),
        ("a.b.c", "a.*", False),
        ("a.b.c", "a.>", True),
        ("a", "a.>", False),
        ("a", ">", True),
        ("a.b.c", "*.*.>", True),
        ("a.b", "*.*.>", False),
        ("ab", "a", False),
        ("a.bc", "a.b", False),
    ],
)
def test_wildcards_take_whole_tokens(subject: str, pattern: str, expected: bool) -> None:
    assert matches(subject, pattern) is expected


@pytest.mark.parametrize(
    "subject",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a\n",
        "a.b\n",
        " a",
        "a\t",
        "é",
        "a/b",
        "a:b",
        "a\x00",
        "\ud800",
        "*",
        "a.>",
        "a.*.b",
    ],
)
def test_a_bad_subject_is_refused_and_named(subject: str) -> None:
    with pytest.raises(Refused) as caught:
        validate_subject(subject)
    assert caught.value.code == "subject_invalid"
    assert caught.value.fields["subject"] == subject


@pytest.mark.parametrize("pattern", [">.a", "a.>.b", "a*", "*a", "a.>b", "**", ">>", "a. .b", ""])
def test_a_wildcard_stands_alone_and_the_rest_is_last(pattern: str) -> None:
    with pytest.raises(Refused):
        validate_subject(pattern, allow_wildcards=True)


@pytest.mark.parametrize("pattern", [">", "*", "a.*", "a.>", "*.*.>", "a.*.b"])
def test_patterns_are_valid_only_where_wildcards_are_allowed(pattern: str) -> None:
    assert validate_subject(pattern, allow_wildcards=True) == pattern
    assert is_pattern(pattern)
    with pytest.raises(Refused):
        validate_subject(pattern)


@pytest.mark.parametrize("value", [None, 1, b"a.b", ["a"]])
def test_what_is_no_text_is_no_subject(value: object) -> None:
    with pytest.raises(Refused, match="not a string"):
        validate_subject(value)  # type: ignore[arg-type]


def test_a_subject_has_at_most_16_tokens_and_255_bytes() -> None:
    assert validate_subject(".".join("a" * 16))
    assert validate_subject("a" * 255)
    for subject in (".".join("a" * 17), "a" * 256):
        with pytest.raises(Refused, match="subject"):
            validate_subject(subject)


def test_a_topic_has_at_most_12_tokens_and_160_bytes_and_no_wildcard() -> None:
    assert validate_topic(".".join("a" * 12))
    assert validate_topic("a" * 160)
    for topic in (".".join("a" * 13), "a" * 161, "a.*", ">", "", "a..b"):
        with pytest.raises(Refused) as caught:
            validate_topic(topic)
        assert caught.value.code == "topic_invalid"


@given(SUBJECTS)
def test_prefixes_end_at_token_boundaries_longest_first(subject: str) -> None:
    tokens = subject.split(".")
    assert list(prefixes(subject)) == [".".join(tokens[:n]) for n in range(len(tokens), 0, -1)]


@given(st.text(max_size=12))
def test_validation_agrees_with_the_grammar(text: str) -> None:
    grammar = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
    try:
        validate_subject(text)
        is_valid = True
    except Refused:
        is_valid = False
    assert is_valid == (grammar.fullmatch(text) is not None)


def test_long_texts_are_refused_without_being_remembered() -> None:
    before = _fault.cache_info().currsize
    for length in range(256, 300):
        with pytest.raises(Refused, match="longer than 255 bytes"):
            validate_subject("x" * length)
        with pytest.raises(Refused, match="longer than 160 bytes"):
            validate_topic("x" * length)
    assert _fault.cache_info().currsize == before
