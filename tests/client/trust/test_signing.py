from __future__ import annotations

from posthouse.client import Signer
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS


def test_second_event_is_newer_even_if_the_clock_stops_or_steps_back_a_little() -> None:
    clock = FakeClock()
    signer = Signer(NodeKey.generate(), clock)
    first, second = signer.sign(1), signer.sign(1)
    clock.step_wall(-60)
    third = signer.sign(1)
    assert first.created_at_ns < second.created_at_ns < third.created_at_ns


def test_signer_follows_a_clock_that_was_set_back_by_much() -> None:
    clock = FakeClock()
    signer = Signer(NodeKey.generate(), clock)
    clock.step_wall(86_400)
    signer.sign(1)
    clock.step_wall(-86_400)
    assert signer.sign(1).created_at_ns - clock.wall_ns() < CREATED_AT_MAX_AHEAD_NS


def test_signer_does_not_follow_a_clock_that_was_set_forward_since_a_relay_accepted_it() -> None:
    clock = FakeClock()
    signer = Signer(NodeKey.generate(), clock)
    signer.note_login(signer.prove("ed25519:" + "0" * 64))
    clock.advance(3_600)
    right_ns = clock.wall_ns()
    clock.step_wall(31 * 86_400)
    assert 0 <= signer.sign(1).created_at_ns - right_ns < CREATED_AT_MAX_AHEAD_NS
    proof = signer.prove("ed25519:" + "0" * 64)
    assert proof.created_at_ns == clock.wall_ns(), "the machine may have slept: only a relay can say"
    signer.note_login(proof)
    assert signer.sign(1).created_at_ns >= clock.wall_ns()
