from __future__ import annotations

import random

import pytest

from posthouse.client.daemon.event_stream import SLICE_S, LongPoll
from posthouse.client.failures import Backoff
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError, error

GONE = error("daemon_unreachable", daemon="sock", reason="gone")


def test_long_wait_is_polled_in_slices_and_ends_in_time() -> None:
    clock = FakeClock()
    poll = LongPoll(SLICE_S + 5, clock)
    assert poll.slice_s() == SLICE_S
    clock.advance(SLICE_S)
    assert poll.slice_s() == 5
    clock.advance(6)
    assert poll.left_s == 0


def test_step_of_the_wall_clock_changes_nothing() -> None:
    clock = FakeClock()
    poll = LongPoll(10, clock)
    clock.step_wall(-3600)
    assert poll.left_s == 10


def test_wait_retries_an_unreachable_daemon_until_its_timeout() -> None:
    clock = FakeClock()
    poll = LongPoll(1, clock, Backoff(first_s=0.05, max_s=2.0, chance=random.Random(1)))
    assert 0 < poll.pause_s(GONE) <= 0.05
    clock.advance(2)
    with pytest.raises(PosthouseError, match="cannot be reached"):
        poll.pause_s(GONE)


def test_wait_retries_a_daemon_that_is_stopping() -> None:
    poll = LongPoll(1, FakeClock())
    assert 0 < poll.pause_s(error("daemon_stopping")) <= 0.05


def test_refusal_ends_the_wait_at_once() -> None:
    with pytest.raises(PosthouseError) as caught:
        LongPoll(60).pause_s(error("parameter_unknown", name="x"))
    assert caught.value.code == "parameter_unknown"
