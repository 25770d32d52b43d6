from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from posthouse.client import Client, Pins
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError, Refused
from posthouse.relay.listen import Protection
from tests.client.certificates import make_certificate
from tests.client.house import QUICK, House, open_house
from tests.client.waiting import take


def protected(folder: Path, *hosts: str) -> Protection:
    made = make_certificate(folder, *hosts)
    return Protection(tls_cert=made.cert, tls_key=made.key, has_admin=True)


def client_of(house: House, tls_ca: Path | None) -> Client:
    url = house.url.replace("http://", "https://")
    return Client(url, NodeKey.generate(), pins=Pins(None), options=replace(QUICK, tls_ca=tls_ca))


async def test_http_and_stream_work_over_tls_with_the_relays_authority(tmp_path: Path) -> None:
    async with (
        open_house(tmp_path, protection=protected(tmp_path, "127.0.0.1")) as house,
        client_of(house, tmp_path / "authority.pem") as client,
    ):
        published = await client.publish("sealed on its way", kind=1)
        assert (await client.get(published.event.id)).event == published.event
        assert len(await take(await client.subscribe({"kinds": [1]}), 1)) == 1


async def test_certificate_of_an_unknown_authority_is_refused_with_a_hint(tmp_path: Path) -> None:
    async with (
        open_house(tmp_path, protection=protected(tmp_path, "127.0.0.1")) as house,
        client_of(house, None) as client,
    ):
        for call in (client.connect(), client.info()):
            with pytest.raises(Refused) as refused:
                await call
            assert refused.value.code == "relay_certificate_refused"
            assert "--tls-ca" in refused.value.hint


async def test_certificate_for_another_host_is_refused(tmp_path: Path) -> None:
    async with (
        open_house(tmp_path, protection=protected(tmp_path, "relay.example")) as house,
        client_of(house, tmp_path / "authority.pem") as client,
    ):
        with pytest.raises(Refused) as refused:
            await client.connect()
        assert refused.value.code == "relay_certificate_refused"


async def test_tls_client_at_a_plain_relay_gets_a_clear_error(house: House) -> None:
    async with client_of(house, None) as client:
        with pytest.raises(PosthouseError) as refused:
            await client.connect()
        assert refused.value.code == "relay_unreachable"


async def test_error_names_an_authority_file_that_cannot_be_read(house: House, tmp_path: Path) -> None:
    async with client_of(house, tmp_path / "nothing.pem") as client:
        with pytest.raises(Refused) as refused:
            await client.connect()
        assert "nothing.pem" in str(refused.value)
