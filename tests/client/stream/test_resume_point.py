from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from posthouse.client.stream.subscription import ResumePoint
from posthouse.journal.cursor import Cursor, parse_cursor

EPOCH = "ab" * 16


def test_resume_after_live_events_starts_after_the_last_of_them() -> None:
    place = ResumePoint(None, None)
    assert place.options() == {}
    place.move_to(str(Cursor(EPOCH, 10)))
    assert place.advance(17) == str(Cursor(EPOCH, 17))
    assert place.options() == {"cursor": str(Cursor(EPOCH, 17))}
    assert not place.passes(17)
    assert place.passes(18)


def test_cursor_of_an_unknown_form_is_sent_unchanged_and_known_seqs_are_skipped() -> None:
    place = ResumePoint("opaque", None)
    assert place.advance(17) is None
    assert place.options() == {"cursor": "opaque"}
    assert not place.passes(17)


def test_limit_applies_only_before_the_first_event() -> None:
    place = ResumePoint(None, 5)
    assert place.options() == {"limit": 5}
    place.advance(3)
    assert place.options() == {}


def test_events_without_a_seq_always_pass() -> None:
    place = ResumePoint(None, None)
    place.advance(100)
    assert place.passes(None)


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=30, unique=True).map(sorted), st.data())
def test_connection_lost_at_any_point_gives_every_event_once_in_order(seqs: list[int], data: st.DataObject) -> None:
    """The oracle is the list itself; a relay serves what is behind the cursor, cut wherever hypothesis likes."""
    place, seen = ResumePoint(None, None), []
    for _ in range(20):
        options = place.options()
        start = parse_cursor(options["cursor"]).seq if "cursor" in options else 0
        served = [seq for seq in seqs if seq > start]
        cut = data.draw(st.integers(0, len(served)))
        for seq in served[:cut]:
            if place.passes(seq):
                place.advance(seq)
                seen.append(seq)
        if cut == len(served):
            place.move_to(str(Cursor(EPOCH, max(seqs))))
    assert seen == seqs[: len(seen)]
    assert len(seen) == len(set(seen))
