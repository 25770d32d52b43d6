from __future__ import annotations

from posthouse.daemon.drain import throttle_s


def test_backlog_pauses_while_programs_send_for_as_long_as_all_destinations_need() -> None:
    assert throttle_s(is_full=True, accepted=16, took_s=0.02, destinations=1) == 0.02
    assert throttle_s(is_full=True, accepted=16, took_s=0.02, destinations=10) == 0.2


def test_neither_a_backlog_alone_nor_a_frame_that_is_not_full_pauses() -> None:
    assert throttle_s(is_full=True, accepted=15, took_s=0.02, destinations=10) == 0.0
    assert throttle_s(is_full=False, accepted=1_000, took_s=0.02, destinations=10) == 0.0


def test_slow_relay_does_not_make_the_pause_long() -> None:
    assert throttle_s(is_full=True, accepted=1_000, took_s=60.0, destinations=1_000) == 0.5
