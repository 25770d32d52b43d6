from __future__ import annotations

from posthouse.daemon.drain import throttle_s


def test_lane_with_a_backlog_rests_while_programs_send_for_as_long_as_all_lanes_need() -> None:
    assert throttle_s(is_full=True, accepted=16, took_s=0.02, lanes=1) == 0.02
    assert throttle_s(is_full=True, accepted=16, took_s=0.02, lanes=10) == 0.2


def test_backlog_alone_never_rests_nor_does_a_lane_that_has_sent_all_it_had() -> None:
    assert throttle_s(is_full=True, accepted=15, took_s=0.02, lanes=10) == 0.0
    assert throttle_s(is_full=False, accepted=1_000, took_s=0.02, lanes=10) == 0.0


def test_slow_relay_does_not_make_the_rest_long() -> None:
    assert throttle_s(is_full=True, accepted=1_000, took_s=60.0, lanes=1_000) == 0.5
