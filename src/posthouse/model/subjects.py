"""Subjects and patterns: how endpoints and topics are named, and when a pattern matches a subject.

A subject is a list of tokens joined by dots; a pattern may also hold `*` (exactly one token) and, as its last
token, `>` (one or more). Invalid text is refused, never repaired. Looking up many patterns at once
is the work of posthouse.model.trie.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from posthouse.model.errors import error
from posthouse.model.limits import SUBJECT_MAX_BYTES, SUBJECT_MAX_TOKENS, TOPIC_MAX_BYTES, TOPIC_MAX_TOKENS

ONE = "*"
REST = ">"
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


def validate_subject(subject: str, allow_wildcards: bool = False) -> str:
    """Return the subject unchanged, or raise subject_invalid with what is wrong with it."""
    reason = _subject_fault(subject, allow_wildcards)
    if reason is not None:
        raise error("subject_invalid", subject=subject, reason=reason)
    return subject


def validate_topic(topic: str) -> str:
    """Return the topic unchanged, or raise topic_invalid: a shorter subject without wildcards."""
    reason = _topic_fault(topic)
    if reason is not None:
        raise error("topic_invalid", topic=topic, reason=reason)
    return topic


def is_pattern(subject: str) -> bool:
    """Tell whether a valid subject holds a wildcard."""
    return ONE in subject or REST in subject


def matches(subject: str, pattern: str) -> bool:
    """Tell whether a pattern matches a literal subject; both must be valid, neither is checked."""
    if subject == pattern:
        return True
    tokens = subject.split(".")
    wanted = pattern.split(".")
    if wanted[-1] == REST:
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
    elif len(tokens) != len(wanted):
        return False
    return all(want in (ONE, token) for token, want in zip(tokens, wanted, strict=False))


def prefixes(subject: str) -> Iterator[str]:
    """Yield the subject and its prefixes at token boundaries, longest first."""
    yield subject
    end = subject.rfind(".")
    while end > 0:
        yield subject[:end]
        end = subject.rfind(".", 0, end)


def _subject_fault(subject: str, allow_wildcards: bool) -> str | None:
    if type(subject) is not str:
        return "it is not a string"
    if len(subject) > SUBJECT_MAX_BYTES:  # before the cache, which must not hold long texts
        return f"it is longer than {SUBJECT_MAX_BYTES} bytes"
    return _fault(subject, allow_wildcards)


@lru_cache(maxsize=8192)  # the same few subjects are validated for every message
def _fault(subject: str, allow_wildcards: bool) -> str | None:
    """Judge a text of bounded length; a valid one is ASCII, so its characters are its bytes."""
    if not subject:
        return "it is empty"
    tokens = subject.split(".")
    if len(tokens) > SUBJECT_MAX_TOKENS:
        return f"it has more than {SUBJECT_MAX_TOKENS} tokens"
    for position, token in enumerate(tokens, start=1):
        reason = _token_fault(token, allow_wildcards, is_last=position == len(tokens))
        if reason is not None:
            return f"token {position} {reason}"
    return None


def _token_fault(token: str, allow_wildcards: bool, is_last: bool) -> str | None:
    if not token:
        return "is empty"
    if token in (ONE, REST):
        if not allow_wildcards:
            return f"is the wildcard `{token}`, which only patterns may hold"
        return None if token == ONE or is_last else "is `>`, which may only be the last"
    if _TOKEN.fullmatch(token) is None:
        return "has a character other than letters, digits, `_` and `-`"
    return None


def _topic_fault(topic: str) -> str | None:
    if type(topic) is not str:
        return "it is not a string"
    if topic.count(".") >= TOPIC_MAX_TOKENS:
        return f"it has more than {TOPIC_MAX_TOKENS} tokens"
    if len(topic) > TOPIC_MAX_BYTES:
        return f"it is longer than {TOPIC_MAX_BYTES} bytes"
    return _fault(topic, False)
