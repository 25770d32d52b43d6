"""Login: an agent that proves its key gets its address; any other is refused without a reason and closed."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from examples.pinch_agent.agent import Agent, LoginRefused
from examples.pinch_agent.pinch_pb2 import Envelope, MessageType
from posthouse.model.clock import FakeClock
from posthouse.model.limits import PINCH_CHALLENGE_S
from posthouse.relay.pinch.pinch_settings import PinchSettings, parse_patterns
from tests.relay.edge import Author, Edge, running
from tests.relay.pinch.house import HOST, PinchParty, endpoint, pinching, until, wire
from tests.relay.pinch.raw import Raw, logged_in, raw

FAILED = "authentication failed"


async def refusal(connection: Raw) -> str:
    """Return the last envelope before the relay closes with 1008."""
    result = (await connection.envelope()).auth_result
    assert not result.success and not result.assigned_address
    assert await connection.closed() == 1008
    return result.error_message


async def test_challenge_says_what_has_to_be_signed_and_until_when(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock) as edge, raw(edge) as connection, raw(edge) as other:
        challenge = connection.challenge
        assert challenge.version == 1
        assert len(challenge.nonce) == 32 and challenge.nonce != other.challenge.nonce
        assert challenge.relay_host == HOST
        assert challenge.issued_at_ms == clock.wall_ns() // 1_000_000
        assert challenge.expires_at_ms == challenge.issued_at_ms + PINCH_CHALLENGE_S * 1_000


async def test_login_gives_the_address_of_the_key(edge: Edge) -> None:
    agent = Agent(HOST)
    async with raw(edge) as connection:
        result = await connection.answer(agent)
        assert result.success and not result.error_message
        assert result.assigned_address == agent.address
        assert re.fullmatch(r"pinch:[1-9A-HJ-NP-Za-km-z]+@relay\.test", agent.address)


def another_key(response: Envelope) -> None:
    response.auth_response.public_key = bytes(Agent(HOST).key.verify_key)


def broken_signature(response: Envelope) -> None:
    signature = bytearray(response.auth_response.signature)
    signature[0] ^= 1
    response.auth_response.signature = bytes(signature)


def short_signature(response: Envelope) -> None:
    response.auth_response.signature = response.auth_response.signature[:63]


def no_key(response: Envelope) -> None:
    response.auth_response.public_key = b""


def small_order_key(response: Envelope) -> None:
    response.auth_response.public_key = bytes(32)


def wrong_nonce(response: Envelope) -> None:
    response.auth_response.nonce = bytes(32)


def wrong_version(response: Envelope) -> None:
    response.auth_response.version = 2


def other_type(response: Envelope) -> None:
    response.type = MessageType.MESSAGE_TYPE_HEARTBEAT


def no_payload(response: Envelope) -> None:
    response.ClearField("auth_response")


SPOILERS = (
    another_key, broken_signature, short_signature, no_key, small_order_key, wrong_nonce, wrong_version, other_type,
    no_payload,
)  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
async def test_wrong_answer_fails(edge: Edge, spoil: Callable[[Envelope], None]) -> None:
    async with raw(edge) as connection:
        response = Agent(HOST).answer(connection.challenge.nonce, HOST)
        spoil(response)
        await connection.socket.send_bytes(response.SerializeToString())
        assert await refusal(connection) == FAILED
        assert endpoint(edge).logged_in == 0


async def test_signature_for_another_relay_or_another_nonce_fails(edge: Edge) -> None:
    agent = Agent(HOST)
    async with raw(edge) as connection:
        await connection.socket.send_bytes(agent.answer(connection.challenge.nonce, "other.test").SerializeToString())
        assert await refusal(connection) == FAILED
    async with raw(edge) as connection:
        response = agent.answer(b"x" * 32, HOST)
        response.auth_response.nonce = connection.challenge.nonce
        await connection.socket.send_bytes(response.SerializeToString())
        assert await refusal(connection) == FAILED


async def test_answer_of_another_connection_fails(edge: Edge) -> None:
    agent = Agent(HOST)
    async with raw(edge) as first, raw(edge) as second:
        response = agent.answer(first.challenge.nonce, HOST).SerializeToString()
        await second.socket.send_bytes(response)
        assert await refusal(second) == FAILED
        await first.socket.send_bytes(response)
        assert (await first.envelope()).auth_result.success


async def test_expired_challenge_fails_and_one_in_time_does_not(tmp_path: Path) -> None:
    clock, agent = FakeClock(), Agent(HOST)
    async with pinching(tmp_path / "relay", clock) as edge:
        async with raw(edge) as connection:
            clock.advance(PINCH_CHALLENGE_S)
            assert (await connection.answer(agent)).success
        async with raw(edge) as connection:
            clock.advance(PINCH_CHALLENGE_S + 0.001)
            await connection.socket.send_bytes(agent.answer(connection.challenge.nonce, HOST).SerializeToString())
            assert await refusal(connection) == FAILED


async def test_text_frame_does_not_answer_the_challenge(edge: Edge) -> None:
    async with raw(edge) as connection:
        await connection.socket.send_str("let me in")
        assert await refusal(connection) == FAILED


async def test_frame_that_is_not_an_envelope_does_not_answer_the_challenge(edge: Edge) -> None:
    async with raw(edge) as connection:
        await connection.socket.send_bytes(b"\xff\xff\xff")
        assert await refusal(connection) == FAILED


async def test_no_answer_in_time_fails(tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", challenge_s=0.2) as edge, raw(edge) as connection:
        assert await refusal(connection) == FAILED


async def test_envelope_sent_before_the_login_is_not_accepted(edge: Edge, alice: PinchParty) -> None:
    stranger = Agent(HOST)
    async with raw(edge) as connection:
        await connection.socket.send_bytes(stranger.compose(alice.address, "early").SerializeToString())
        assert await refusal(connection) == FAILED
    assert await alice.left() == []


async def test_second_login_of_an_address_that_is_alive_is_refused(edge: Edge, alice: PinchParty) -> None:
    copy = Agent(HOST, alice.agent.key)
    async with raw(edge) as connection:
        result = await connection.answer(copy)
        assert (result.success, result.error_message) == (False, "address already connected")
        assert await connection.closed() == 1008
    with pytest.raises(LoginRefused, match="address already connected"):
        await copy.connect(edge.url)
    sent = await alice.send(alice, "still here")
    assert [each.id for each in await alice.receive(1)] == [sent]


async def test_second_login_wins_once_the_first_fails_a_ping(tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", pong_s=0.3, greeting_s=0.1) as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await alice.connect()
        async with logged_in(edge, bob.agent) as silent:  # it never answers a ping
            await bob.connect()
            assert await silent.closed() == 1008
            sent = await alice.send(bob, "to the second")
            assert [each.id for each in await bob.receive(1)] == [sent]
            assert endpoint(edge).logged_in == 2


async def test_login_after_a_cut_needs_no_ping(tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", pong_s=3_600.0, ping_s=3_600.0) as edge, wire(edge) as pinch:
        bob = pinch.party()
        await bob.connect()
        await bob.cut()
        await bob.connect()
        assert endpoint(edge).logged_in == 1


async def test_connection_that_never_logs_in_is_not_counted(edge: Edge) -> None:
    async with raw(edge), raw(edge):
        await until(lambda: len(endpoint(edge).connections) == 2)
        assert endpoint(edge).logged_in == 0


async def test_pages_of_other_sites_are_refused_without_a_list(edge: Edge) -> None:
    for path in ("/ws", "/health"):
        for origin in ("https://evil.test", "null"):
            reply = await edge.send("GET", path, headers={"Origin": origin})
            assert (reply.status, reply.code) == (403, "origin_refused")
    async with raw(edge, origin=edge.url), raw(edge):
        pass


async def test_origin_is_checked_when_a_list_is_given(tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", origins=parse_patterns("https://good.test, *.wide.test")) as edge:
        for origin in ("https://good.test", "http://any.wide.test"):
            async with raw(edge, origin=origin):
                pass
        async with raw(edge):
            pass
        for path, origin in (("/ws", "https://evil.test"), ("/v1/info", "https://good.test")):
            reply = await edge.send("GET", path, headers={"Origin": origin})
            assert (reply.status, reply.code) == (403, "origin_refused"), "the list holds for the Pinch wire only"


async def test_pinch_logins_take_no_place_of_members(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", pinch=PinchSettings(HOST), connections=4) as edge, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(logged_in(edge))
        async with raw(edge) as third:
            refused = await third.answer(Agent(HOST))
            assert (refused.success, "connections" in refused.error_message) == (False, True)
        for _ in range(4):
            await stack.enter_async_context(edge.stream(Author()))
