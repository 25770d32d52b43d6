"""Cursors: opaque, exact, and never silently wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.journal.cursor import Cursor, Extent, parse_cursor, resolve_cursor
from posthouse.model.errors import PosthouseError

A, B, C, OTHER = ("aa" * 16, "bb" * 16, "cc" * 16, "00" * 16)
#: A forked to B after 100, B to C after 300; pruned through 20.
EXTENT = Extent(C, 300, 20, 400, ((B, 300), (A, 100)))


@given(st.binary(min_size=16, max_size=16), st.integers(min_value=0, max_value=2**64 - 1))
def test_a_cursor_survives_its_text(epoch: bytes, seq: int) -> None:
    cursor = Cursor(epoch.hex(), seq)
    assert parse_cursor(str(cursor)) == cursor


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        cursor = parse_cursor(text)
    except PosthouseError as failure:
        assert failure.code == "cursor_invalid"
    else:
        assert str(cursor) == text


def refused(cursor: Cursor) -> PosthouseError:
    with pytest.raises(PosthouseError) as failure:
        resolve_cursor(EXTENT, str(cursor))
    return failure.value


def test_a_cursor_of_this_epoch_continues_where_it_stands() -> None:
    assert [resolve_cursor(EXTENT, str(Cursor(C, seq))) for seq in (20, 21, 350, 400)] == [20, 21, 350, 400]


def test_no_cursor_starts_at_the_oldest_record() -> None:
    assert resolve_cursor(EXTENT, None) == 20


def test_a_cursor_beyond_the_head_starts_again_at_the_head() -> None:
    failure = refused(Cursor(C, 401))
    assert failure.code == "cursor_reset"
    assert failure.fields == {"fork_seq": 400, "cursor": str(Cursor(C, 400))}


def test_a_cursor_below_the_horizon_is_told_the_oldest_seq() -> None:
    failure = refused(Cursor(C, 19))
    assert failure.code == "cursor_pruned"
    assert failure.fields == {"oldest_seq": 21, "cursor": str(Cursor(C, 20))}


@pytest.mark.parametrize(
    ("stale", "restart"),
    [
        (Cursor(B, 250), 250),  # below the fork: it has read nothing that was lost, and must not skip 251..300
        (Cursor(B, 310), 300),
        (Cursor(A, 50), 50),
        (Cursor(A, 150), 100),
        (Cursor(A, 5), 20),
        (Cursor(OTHER, 350), 20),  # nothing is known about its history: everything may be new to it
    ],
)
def test_a_stale_cursor_is_reset_to_where_the_histories_were_one(stale: Cursor, restart: int) -> None:
    failure = refused(stale)
    assert failure.code == "cursor_reset"
    assert failure.fields["cursor"] == str(Cursor(C, restart))
    assert resolve_cursor(EXTENT, failure.fields["cursor"]) == restart
