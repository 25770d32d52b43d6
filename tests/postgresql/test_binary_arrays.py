"""Arrays come back from the server as they were given."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.postgresql.server_connection import open_reader_session

CASES: dict[str, list[list[Any]]] = {
    "bigint[]": [[1, -(2**63), 2**63 - 1], [None, 7, None], [], [None, None]],
    "bytea[]": [[b"", b"\x00\xff", b"x" * 70_000], [b"a", None], []],
    "text[]": [["", "é☕𝄞", 'quo"te\\{},NULL'], [None, "NULL"], [], [None]],
    "boolean[]": [[True, False, None]],
}


@pytest.mark.parametrize("kind", CASES)
def test_array_comes_back_as_it_was_given(database: str, kind: str) -> None:
    session = open_reader_session(database)
    try:
        found: list[Any] = [session.value(f"SELECT $1::{kind}", values) for values in CASES[kind]]
    finally:
        session.close()
    assert found == CASES[kind]
