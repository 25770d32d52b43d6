"""Authentication over HTTP: challenges, proofs and tokens, and everything that is not a proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posthouse.model.clock import FakeClock
from tests.relay.edge import AUTHENTICATION, Author, Edge, running

READS = [
    "/v1/events",
    "/v1/events/count",
    "/v1/events/" + "0" * 64,
    "/v1/events/address/30000/ed25519:" + "0" * 64 + "/x",
    "/v1/meshes",
    "/v1/meshes/main/members",
    "/v1/journal",
    "/v1/export/journal",
    "/metrics",
]


@pytest.mark.parametrize("path", READS)
async def test_nothing_is_read_without_authentication(edge: Edge, path: str) -> None:
    reply = await edge.get(path)
    assert (reply.status, reply.code) == (401, "authentication_required")
    assert reply.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/info", "/openapi.json"])
async def test_health_and_info_need_no_token(edge: Edge, path: str) -> None:
    assert (await edge.get(path)).status == 200


async def challenge(edge: Edge, author: Author) -> dict[str, Any]:
    given: dict[str, Any] = (await edge.post("/v1/auth/challenge", {"pubkey": author.node})).value
    return given


async def test_replayed_proof_is_refused(edge: Edge, author: Author) -> None:
    given = await challenge(edge, author)
    proof = author.proof(given["relay"], ("challenge", given["challenge"]))
    assert (await edge.post("/v1/auth", {"event": proof})).status == 200
    again = await edge.post("/v1/auth", {"event": proof})
    assert (again.status, again.code) == (401, "challenge_invalid")
    fresh = author.proof(given["relay"], ("challenge", given["challenge"]))
    assert (await edge.post("/v1/auth", {"event": fresh})).code == "challenge_invalid"


async def test_challenge_given_to_another_node_is_refused(edge: Edge, author: Author) -> None:
    given = await challenge(edge, author)
    thief = Author()
    proof = thief.proof(given["relay"], ("challenge", given["challenge"]))
    assert (await edge.post("/v1/auth", {"event": proof})).code == "challenge_invalid"


async def test_stream_challenge_is_nothing_over_http(edge: Edge, author: Author) -> None:
    async with edge.stream() as stream:
        proof = author.proof(edge.relay, ("challenge", stream.hello["challenge"]))
        assert (await edge.post("/v1/auth", {"event": proof})).code == "challenge_invalid"


async def test_proof_and_token_of_another_relay_are_refused(edge: Edge, author: Author, tmp_path: Path) -> None:
    async with running(tmp_path / "other") as other:
        given = await challenge(other, author)
        foreign = author.proof(given["relay"], ("challenge", given["challenge"]))
        assert (await edge.post("/v1/auth", {"event": foreign})).code == "proof_invalid"
        renamed = author.proof(edge.relay, ("challenge", given["challenge"]))
        assert (await edge.post("/v1/auth", {"event": renamed})).code == "challenge_invalid"
        token = await other.token(author)
    reply = await edge.get("/v1/events", token)
    assert (reply.status, reply.code) == (401, "token_invalid")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "bearer x", "Bearer x y", "Bearer \xff"])
async def test_header_that_is_no_token_is_refused(edge: Edge, header: str) -> None:
    reply = await edge.send("GET", "/v1/events", headers={"Authorization": header})
    assert (reply.status, reply.code) == (401, "token_invalid")


async def proof_code(edge: Edge, author: Author, event: dict[str, Any]) -> str:
    reply = await edge.post("/v1/auth", {"event": event})
    assert reply.status in (400, 401)
    return reply.code


async def test_each_malformed_proof_gets_its_code(edge: Edge, author: Author) -> None:
    given = await challenge(edge, author)
    relay, code = ("relay", given["relay"]), ("challenge", given["challenge"])
    now = author._clock.wall_ns()
    minute = 60 * 1_000_000_000
    good = author.event(AUTHENTICATION, "", [relay, code])
    cases = [
        (author.event(1, "", [relay, code]), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [code]), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [relay]), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [relay, relay, code]), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [relay, code, code]), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [relay, (*code, "more")]), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [relay, ("challenge",)]), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [("relay", author.node), code]), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [relay, code], now + 16 * minute), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [relay, code], now - 16 * minute), "proof_invalid"),
        (author.event(AUTHENTICATION, "", [relay, code], 0), "proof_invalid"),
        (good | {"created_at_ns": -1}, "event_created_at_range"),
        (good | {"created_at_ns": 2**63}, "event_created_at_range"),
        (good | {"sig": "0" * 128}, "signature_invalid"),
        (good | {"sig": ""}, "event_sig_form"),
        (good | {"id": "0" * 64}, "event_id_mismatch"),
        (good | {"pubkey": Author().node}, "event_id_mismatch"),
        (good | {"pubkey": "ed25519:" + "0" * 64}, "event_id_mismatch"),
        (author.event(AUTHENTICATION, "", [relay, ("challenge", "0" * 64)]), "challenge_invalid"),
    ]
    for event, expected in cases:
        assert await proof_code(edge, author, event) == expected, event
    assert (await edge.post("/v1/auth", {"event": good})).status == 200, "no failure may have spent the challenge"


@pytest.mark.parametrize(
    "pubkey",
    ["", "ed25519:" + "A" * 64, "ed25519:" + "0" * 64, "ed25519:01" + "0" * 62, "rsa:1", "ed25519:" + "f" * 64],
)
async def test_challenge_for_an_unsound_key_is_refused(edge: Edge, pubkey: str) -> None:
    assert (await edge.post("/v1/auth/challenge", {"pubkey": pubkey})).status == 400


async def test_authentication_event_is_never_published(edge: Edge, author: Author) -> None:
    reply = await edge.post("/v1/events", author.proof(edge.relay, ("challenge", "0" * 64)))
    assert reply.code == "kind_not_publishable"


async def test_token_ends_after_its_hour(tmp_path: Path) -> None:
    clock = FakeClock()
    author = Author(clock)
    async with running(tmp_path / "relay", clock) as edge:
        token = await edge.token(author)
        clock.advance(3_599)
        assert (await edge.get("/v1/events", token)).status == 200
        clock.advance(2)
        assert (await edge.get("/v1/events", token)).code == "token_invalid"
