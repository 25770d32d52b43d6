"""Tokens: fresh, long enough, compared as a whole."""

from __future__ import annotations

import base64

import pytest

from posthouse.keys import new_token, same_token


def test_a_token_is_32_random_bytes_in_base64url() -> None:
    tokens = {new_token() for _ in range(50)}
    assert len(tokens) == 50
    for token in tokens:
        assert len(token) == 43
        assert len(base64.urlsafe_b64decode(token + "=")) == 32


def test_only_the_same_token_is_accepted() -> None:
    token = new_token()
    assert same_token(token, token)
    assert same_token(token.encode(), token)
    for wrong in ("", token[:-1], token + "A", token.swapcase(), token + "\n"):
        assert not same_token(wrong, token)


@pytest.mark.parametrize("given", ["\udc80", "é" * 43, b"\xff\xfe", "\0"])
def test_what_no_token_can_be_compares_unequal_instead_of_failing(given: str | bytes) -> None:
    assert not same_token(given, new_token())
