"""Keys that may not write: their signatures are not verified, and their address pays."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.keys.signature import verify as verify_signature
from posthouse.model.clock import FakeClock, system_clock
from posthouse.relay.accept import verify
from posthouse.relay.accept.rates import STRANGER_RATE
from posthouse.relay.auth import Challenges, SpentInMemory
from tests.relay.edge import Author, Edge, running


@pytest.fixture
def signatures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The authors whose signatures were verified."""
    seen: list[str] = []

    def record(node: str, message: bytes, signature: str) -> None:
        seen.append(node)
        verify_signature(node, message, signature)

    monkeypatch.setattr(verify, "verify", record)
    return seen


async def closed_mesh(edge: Edge) -> str:
    """Create a mesh that is closed and return its name."""
    reply = await edge.post("/v1/meshes", {"name": "team", "member_name": "admin"}, await edge.token(edge.admin))
    assert reply.status == 201, reply.body
    return "team"


async def test_signature_of_a_key_without_rights_is_not_verified(edge: Edge, signatures: list[str]) -> None:
    mesh, stranger = await closed_mesh(edge), Author()
    signatures.clear()
    event = stranger.event(tags=[("mesh", mesh)])
    for sent in (event, event | {"sig": "0" * 128}, stranger.event(tags=[("mesh", "nowhere")])):
        reply = await edge.post("/v1/events", sent)
        assert reply.code in ("not_member", "mesh_unknown")
    assert signatures == []
    assert (await edge.post("/v1/events", edge.admin.event(tags=[("mesh", mesh)]))).status == 201
    assert signatures == [edge.admin.node]


async def test_address_pays_for_strangers_and_members_at_it_do_not(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", FakeClock()) as edge:
        mesh, stranger = await closed_mesh(edge), Author()
        token = await edge.token(edge.admin)
        refused = [stranger.event(tags=[("mesh", mesh)]) for _ in range(STRANGER_RATE.burst)]
        reply = await edge.post("/v1/events", {"events": refused})
        assert reply.status == 207
        late = await edge.post("/v1/events", stranger.event(tags=[("mesh", mesh)]))
        assert (late.status, late.code) == (429, "stranger_rate_exceeded")
        assert late.value["retry_after_s"] > 0
        assert (await edge.post("/v1/auth/challenge", {"pubkey": stranger.node})).status == 200
        assert (await edge.post("/v1/events", edge.admin.event(tags=[("mesh", mesh)]), token)).status == 201


async def test_wrong_signatures_in_the_name_of_a_member_cost_their_address(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", FakeClock()) as edge:
        forged = [edge.admin.event(content=str(number)) | {"sig": "0" * 128} for number in range(STRANGER_RATE.burst)]
        assert (await edge.post("/v1/events", {"events": forged})).status == 207
        assert (await edge.post("/v1/events", edge.admin.event())).code == "stranger_rate_exceeded"
        async with edge.stream(edge.admin) as stream:
            await stream.send("EVENT", edge.admin.event())
            assert (await stream.expect("OK"))[1] is True


async def close_main(edge: Edge) -> None:
    """Close the mesh main, so that keys are members only where they were added."""
    await edge.server.context.engine.administration.set_open(edge.admin.node, "main", is_open=False)


def spend_all_but_one(edge: Edge, payer: str) -> None:
    for _ in range(STRANGER_RATE.burst - 1):
        edge.server.context.engine.strangers.charge(payer)


async def test_logins_of_keys_without_a_mesh_cost_their_address_and_members_log_in_all_the_same(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "relay", clock) as edge:
        await close_main(edge)
        spend_all_but_one(edge, "127.0.0.1")
        async with edge.stream(Author(clock)):
            pass
        async with edge.stream() as late:
            await late.send("AUTH", Author(clock).proof(edge.relay, ("challenge", late.hello["challenge"])))
            assert await late.notice() == "stranger_rate_exceeded"
            assert await late.receive() == ["END", 1013]
        assert await edge.token(edge.admin)
        async with edge.stream(edge.admin):
            pass


async def test_member_pays_for_wrong_proofs_only(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", FakeClock()) as edge:
        spend_all_but_one(edge, f"{edge.admin.node} at 127.0.0.1")
        for _ in range(3):
            assert await edge.token(edge.admin)
        wrong = edge.admin.proof(edge.relay, ("challenge", "0" * 64))
        codes = [(await edge.post("/v1/auth", {"event": wrong})).code for _ in range(2)]
        assert codes == ["challenge_invalid", "stranger_rate_exceeded"]


async def test_login_of_a_key_without_a_mesh_gives_it_no_rate_of_its_own(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "relay", clock) as edge:
        await close_main(edge)
        author = Author(clock)
        async with edge.stream(author) as stream:
            spend_all_but_one(edge, "127.0.0.1")
            await stream.send("EVENT", author.event())
            assert (await stream.expect("OK"))[2]["code"] == "stranger_rate_exceeded"


async def test_stream_logins_take_no_room_for_spent_challenges(edge: Edge) -> None:
    clock = system_clock()
    edge.server.context.challenges = Challenges(clock, clock.boot_ns, bytes(32), SpentInMemory(max_spent=0))
    async with edge.stream(edge.admin) as stream:
        await stream.send("AUTH", edge.admin.proof(edge.relay, ("challenge", stream.hello["challenge"])))
        assert await stream.notice() == "already_authenticated"
