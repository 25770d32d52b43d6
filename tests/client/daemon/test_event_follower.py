from __future__ import annotations

import pytest

from posthouse.client.daemon.event_stream import RESUME_HEADER, EventFollower
from posthouse.client.daemon.local_api import DaemonEvent, InboxItem
from posthouse.model.errors import PosthouseError, error

GONE = error("daemon_unreachable", daemon="sock", reason="gone")


def item(row_id: str) -> InboxItem:
    return InboxItem(row_id, "c", "m", "main", None, "ed25519:x", None, "body", None, "t", None, None)


def test_follower_resumes_after_the_last_message_not_after_other_events() -> None:
    follower = EventFollower(None)
    follower.start_after([item("01A")])
    assert follower.headers() == {RESUME_HEADER: "01A"}
    follower.note(DaemonEvent("message", {"mesh": "main"}, "01B"))
    follower.note(DaemonEvent("peer_join", {"mesh": "main"}))
    assert follower.headers() == {RESUME_HEADER: "01B"}
    follower.note(DaemonEvent("message", {"mesh": "other"}, "02A"))
    assert follower.headers() == {RESUME_HEADER: "01B,02A"}


def test_message_read_from_the_inbox_is_not_repeated_by_the_stream() -> None:
    follower = EventFollower(None)
    follower.start_after([])
    assert follower.headers() == {}
    event = follower.note_stored(item("01A"))
    assert (event.event, event.id, event.data["body"], follower.last) == ("message", "01A", "body", "01A")
    assert not follower.is_new(DaemonEvent("message", {}, "01A"))
    assert follower.is_new(DaemonEvent("message", {}, "01B"))


def test_daemon_that_never_answered_is_an_error_and_one_that_stops_is_retried() -> None:
    follower = EventFollower(None)
    with pytest.raises(PosthouseError, match="cannot be reached"):
        follower.raise_unless_retryable(GONE)
    follower.on_open()
    follower.raise_unless_retryable(GONE)
    assert 0 < follower.pause_s() <= 0.1


def test_replaced_inbox_is_read_from_its_start_but_an_unknown_first_id_is_an_error() -> None:
    unknown = error("inbox_item_unknown", id="01A")
    with pytest.raises(PosthouseError):
        EventFollower("01A").raise_unless_retryable(unknown)
    follower = EventFollower("01A")
    follower.on_open()
    follower.raise_unless_retryable(unknown)
    assert follower.last is None


def test_daemon_that_answered_once_and_stops_before_the_first_stream_is_retried() -> None:
    gone, full = error("daemon_stopping"), error("too_many_streams", limit=32)
    follower = EventFollower(None)
    with pytest.raises(PosthouseError):
        follower.raise_unless_retryable(gone)
    follower.start_after([])
    follower.raise_unless_retryable(gone)
    with pytest.raises(PosthouseError):
        follower.raise_unless_retryable(full)
