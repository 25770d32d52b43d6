"""The HTTP side of the Pinch wire, and a relay without it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from examples.pinch_agent.agent import Agent
from posthouse.model.errors import PosthouseError
from posthouse.model.pinch import address_of
from posthouse.model.settings_sources import resolve_settings
from posthouse.relay.process import server_settings
from tests.relay.edge import Edge, running
from tests.relay.pinch.house import HOST, PinchParty, endpoint, until


async def connections(edge: Edge) -> int:
    reply = await edge.get("/health")
    assert reply.status == 200
    return int(reply.value["connections"])


@pytest.mark.parametrize("variable", ["PINCH_TURNSTILE_SECRET_KEY", "PINCH_TURNSTILE_SITE_KEY"])
def test_environment_that_asks_for_approval_of_keys_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    values = resolve_settings(flags={"relay.pinch_host": HOST})
    assert server_settings(values).pinch is not None
    monkeypatch.setenv(variable, "key")
    with pytest.raises(PosthouseError, match=variable) as caught:
        server_settings(values)
    assert caught.value.code == "pinch_approval_unsupported"


async def test_claim_answers_that_keys_need_no_approval(edge: Edge) -> None:
    for reply in (await edge.get("/claim"), await edge.post("/agents/claim", {})):
        assert (reply.status, reply.value["code"]) == (404, "pinch_claim_needless")


async def test_health_counts_agents_that_are_logged_in(edge: Edge, alice: PinchParty, bob: PinchParty) -> None:
    assert await connections(edge) == 1
    await bob.connect()
    assert await connections(edge) == 2
    assert (await edge.get("/health")).value["status"] == "ok"
    await bob.agent.disconnect()
    await until(lambda: endpoint(edge).logged_in == 1)
    assert await connections(edge) == 1


async def test_registering_a_key_gives_its_address_and_a_code(edge: Edge) -> None:
    agent = Agent(HOST)
    key = base64.b64encode(bytes(agent.key.verify_key)).decode()
    reply = await edge.post("/agents/register", {"public_key": key, "name": "whatever else"})
    assert reply.status == 200
    assert reply.value["address"] == agent.address == address_of(bytes(agent.key.verify_key), HOST)
    assert len(reply.value["claim_code"]) == 8
    assert set(reply.value["claim_code"]) <= set("0123456789abcdef")
    again = await edge.post("/agents/register", {"public_key": key})
    assert again.value == reply.value
    other = base64.b64encode(bytes(Agent(HOST).key.verify_key)).decode()
    assert (await edge.post("/agents/register", {"public_key": other})).value["claim_code"] != reply.value["claim_code"]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "not base64!",
        base64.b64encode(b"short").decode(),
        base64.b64encode(bytes(31)).decode(),
        base64.b64encode(bytes(33)).decode(),
        base64.b64encode(bytes(32)).decode(),
        base64.urlsafe_b64encode(b"\xff" * 32).decode(),
    ],
    ids=["empty", "alphabet", "short", "31 bytes", "33 bytes", "small order", "url alphabet"],
)
async def test_value_that_is_not_a_key_is_refused(edge: Edge, key: str) -> None:
    reply = await edge.post("/agents/register", {"public_key": key})
    assert (reply.status, reply.code) == (400, "pinch_key_invalid")


@pytest.mark.parametrize("body", [{}, {"public_key": 5}, []])
async def test_body_that_is_not_a_registration_is_refused(edge: Edge, body: object) -> None:
    assert (await edge.post("/agents/register", body)).status == 400


async def test_ws_without_an_upgrade_is_refused(edge: Edge) -> None:
    assert (await edge.get("/ws")).code == "upgrade_required"


async def test_relay_without_pinch_has_no_pinch_routes(tmp_path: Path) -> None:
    async with running(tmp_path / "relay") as edge:
        assert (await edge.get("/ws")).status == 404
        assert (await edge.get("/health")).status == 404
        assert (await edge.post("/agents/register", {"public_key": ""})).status == 404
        assert "pinch" not in edge.server.context.engine.meshes


async def test_mesh_of_pinch_is_reserved(edge: Edge, tmp_path: Path) -> None:
    token = await edge.token(edge.admin)
    assert (await edge.post("/v1/meshes", {"name": "pinch"}, token)).code == "mesh_reserved"
    async with running(tmp_path / "without") as other:
        assert (
            await other.post("/v1/meshes", {"name": "pinch"}, await other.token(other.admin))
        ).code == "mesh_reserved"
