from __future__ import annotations

from posthouse.client.daemon.event_stream import EventReader
from posthouse.client.daemon.local_api import DaemonEvent


def read(*lines: str) -> list[DaemonEvent]:
    reader = EventReader()
    taken = [reader.take(line.encode() + b"\n") for line in lines]
    return [event for event in taken if event is not None]


def test_event_is_complete_at_the_empty_line() -> None:
    lines = ("id: 01A", "event: message", 'data: {"body":"x"}')
    assert read(*lines) == []
    assert read(*lines, "") == [DaemonEvent("message", {"body": "x"}, "01A")]


def test_comment_completes_no_event() -> None:
    assert read(": still here", "", ": still here", "") == []


def test_event_without_an_id_has_none_even_after_one_with_an_id() -> None:
    first, second = read("id: 01A", "event: message", "data: {}", "", "event: peer_join", 'data: {"node":"n"}', "")
    assert (first.id, second.id) == ("01A", None)


def test_colon_inside_the_data_stays() -> None:
    assert read("event: system", 'data: {"text":"a: b"}', "")[0].data == {"text": "a: b"}


def test_carriage_returns_are_stripped() -> None:
    assert read("event: system\r", "data: {}\r", "\r") == [DaemonEvent("system", {})]
