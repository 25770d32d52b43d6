from __future__ import annotations

import pytest

from posthouse.client.daemon.event_stream import RESUME_HEADER, EventFollower
from posthouse.client.daemon.local_api import DaemonEvent, InboxItem
from posthouse.model.errors import PosthouseError, error

GONE = error("daemon_unreachable", daemon="sock", reason="gone")


def item(row_id: str) -> InboxItem:
    return InboxItem(row_id, "c", "m", "main", None, "ed25519:x", None, "body", None, "t", None, None)


def test_it_goes_on_behind_the_last_message_and_not_behind_other_events() -> None:
    following = EventFollower(None)
    following.start_after([item("01A")])
    assert following.headers() == {RESUME_HEADER: "01A"}
    following.note(DaemonEvent("message", {}, "01B"))
    following.note(DaemonEvent("peer_join", {}))
    assert following.headers() == {RESUME_HEADER: "01B"}


def test_empty_inbox_gives_no_place_and_what_is_read_from_it_later_is_not_told_twice() -> None:
    following = EventFollower(None)
    following.start_after([])
    assert following.headers() == {}
    told = following.note_stored(item("01A"))
    assert (told.event, told.id, told.data["body"], following.last) == ("message", "01A", "body", "01A")
    assert not following.is_new(DaemonEvent("message", {}, "01A"))
    assert following.is_new(DaemonEvent("message", {}, "01B"))


def test_daemon_that_was_never_there_is_an_error_and_one_that_goes_away_is_waited_for() -> None:
    following = EventFollower(None)
    with pytest.raises(PosthouseError, match="cannot be reached"):
        following.raise_unless_retryable(GONE)
    following.on_open()
    following.raise_unless_retryable(GONE)
    assert 0 < following.pause_s() <= 0.1


def test_inbox_that_was_put_aside_is_begun_anew_but_a_wrong_place_at_first_is_an_error() -> None:
    unknown = error("inbox_item_unknown", id="01A")
    with pytest.raises(PosthouseError):
        EventFollower("01A").raise_unless_retryable(unknown)
    following = EventFollower("01A")
    following.on_open()
    following.raise_unless_retryable(unknown)
    assert following.last is None


def test_daemon_that_goes_before_the_first_stream_is_waited_for_once_it_has_answered() -> None:
    gone, full = error("daemon_stopping"), error("too_many_streams", limit=32)
    following = EventFollower(None)
    with pytest.raises(PosthouseError):
        following.raise_unless_retryable(gone)
    following.start_after([])
    following.raise_unless_retryable(gone)
    with pytest.raises(PosthouseError):
        following.raise_unless_retryable(full)
