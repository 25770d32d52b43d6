"""A client that knows several relays of one store goes on at another one, and loses and repeats nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.client import Client, parse_invite, parse_relay_url
from posthouse.client.trust.pins import Pins
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError
from tests.relay.edge import PATIENCE_S, Edge


def test_addresses_of_one_relay_are_one_text_and_its_first_one_names_it() -> None:
    url = parse_relay_url("http://127.0.0.1:7420, localhost:7421")
    assert url.origin == "http://127.0.0.1:7420"
    assert str(url) == "http://127.0.0.1:7420,http://localhost:7421"
    assert parse_relay_url(str(url)) == url


def test_addresses_with_and_without_tls_are_refused() -> None:
    with pytest.raises(PosthouseError) as refused:
        parse_relay_url("http://127.0.0.1:7420,https://relay.example")
    assert refused.value.code == "relay_url_invalid"


async def test_clients_go_on_at_another_relay_when_theirs_stops(two: list[Edge], tmp_path: Path) -> None:
    addresses = ",".join(edge.url for edge in two)
    pins = Pins(tmp_path / "pins.json")
    async with (
        Client(addresses, NodeKey.generate(), pins=pins) as sender,
        Client(addresses, NodeKey.generate(), pins=pins) as reader,
        await reader.receive() as mailbox,
    ):
        bodies: list[str] = []

        async def read(count: int) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while len(bodies) < count:
                    delivery = await anext(mailbox)
                    bodies.append(delivery.body)
                    mailbox.confirm(delivery)

        await sender.send(reader.key.node, "before")
        await read(1)
        await two[0].server.stop()
        for number in range(3):
            await sender.send(reader.key.node, f"after {number}")
        await read(4)
        assert bodies == ["before", "after 0", "after 1", "after 2"]


async def test_client_whose_first_address_is_down_starts_at_the_second(two: list[Edge], tmp_path: Path) -> None:
    addresses = f"http://127.0.0.1:9,{two[1].url}"
    async with Client(addresses, NodeKey.generate(), pins=Pins(tmp_path / "pins.json")) as client:
        await client.connect()
        published = await client.publish("hello", kind=1)
        assert published.seq is not None


async def test_invite_has_all_addresses_of_its_maker_and_leads_to_any_of_them(two: list[Edge], tmp_path: Path) -> None:
    addresses = f"http://127.0.0.1:9,{two[0].url},{two[1].url}"
    async with Client(addresses, two[0].admin.key, pins=Pins(None)) as admin:
        await admin.meshes.create("team")
        invite = parse_invite(str(await admin.meshes.invite("team")))
    assert str(invite.url) == addresses
    await two[0].server.stop()
    async with Client(invite.url, NodeKey.generate(), pins=Pins(None), relay_node=invite.relay) as joining:
        assert (await joining.join(invite, "rosa"))["name"] == "rosa"


async def test_request_of_a_client_that_knows_several_addresses_tries_each_of_them(edge: Edge, tmp_path: Path) -> None:
    addresses = f"http://127.0.0.1:9,http://127.0.0.1:11,{edge.url}"
    async with Client(addresses, NodeKey.generate(), pins=Pins(tmp_path / "pins.json")) as client:
        assert (await client.query({})).events == []
