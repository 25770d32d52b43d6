"""A running relay takes a new certificate and new settings, and keeps the old ones when the new are broken."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from posthouse.http.guard import parse_origin
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError
from posthouse.model.rate import Rate
from posthouse.relay.listen import ListenAddress, Protection
from posthouse.relay.reload import Certificates
from posthouse.relay.server import RelayServer, ServerSettings
from tests.client.certificates import Certificate, make_certificate
from tests.client.house import House, open_house

PAGE = "https://console.example"


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path / "first", "127.0.0.1")


@pytest.fixture
async def server(tmp_path: Path, certificate: Certificate) -> AsyncIterator[RelayServer]:
    protection = Protection(tls_cert=certificate.cert, tls_key=certificate.key)
    running = RelayServer(ServerSettings(ListenAddress("127.0.0.1", 0), tmp_path / "relay", protection=protection))
    await running.start()
    yield running
    await running.stop()


async def served(server: RelayServer) -> bytes:
    """Return the certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(server.address.host, server.address.port, ssl=context)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


def der(certificate: Certificate) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.cert.read_text())


def watch(server: RelayServer) -> Certificates:
    assert server.tls is not None
    return Certificates(server.tls, server.settings.protection)


async def test_new_connections_get_a_renewed_certificate(
    server: RelayServer, certificate: Certificate, tmp_path: Path
) -> None:
    certificates, before = watch(server), der(certificate)
    assert await served(server) == before
    renewed = make_certificate(tmp_path / "second", "127.0.0.1")
    shutil.copy(renewed.cert, certificate.cert)
    shutil.copy(renewed.key, certificate.key)
    certificates.check()
    assert await served(server) == der(renewed) != before


async def test_a_certificate_without_its_key_changes_nothing_until_the_key_is_there(
    server: RelayServer, certificate: Certificate, tmp_path: Path
) -> None:
    certificates, before = watch(server), der(certificate)
    renewed = make_certificate(tmp_path / "second", "127.0.0.1")
    shutil.copy(renewed.cert, certificate.cert)
    certificates.check()
    assert await served(server) == before
    certificate.cert.unlink()
    certificates.check()
    assert await served(server) == before
    shutil.copy(renewed.cert, certificate.cert)
    shutil.copy(renewed.key, certificate.key)
    certificates.check()
    assert await served(server) == der(renewed)


async def test_a_certificate_that_changes_again_while_it_is_loaded_does_not_end_the_watch(
    server: RelayServer, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates, before = watch(server), der(certificate)
    renewed = make_certificate(tmp_path / "second", "127.0.0.1")
    shutil.copy(renewed.cert, certificate.cert)
    shutil.copy(renewed.key, certificate.key)

    def cut_after_the_check(_protection: Protection) -> None:
        certificate.cert.write_text("")

    with monkeypatch.context() as patch:
        patch.setattr("posthouse.relay.reload.tls_context", cut_after_the_check)
        certificates.check()
    assert await served(server) == before
    shutil.copy(renewed.cert, certificate.cert)
    certificates.check()
    assert await served(server) == der(renewed)


async def test_the_watch_finds_a_change_by_itself(
    server: RelayServer, certificate: Certificate, tmp_path: Path
) -> None:
    watching = asyncio.create_task(watch(server).watch(every_s=0.01))
    renewed = make_certificate(tmp_path / "second", "127.0.0.1")
    shutil.copy(renewed.key, certificate.key)
    shutil.copy(renewed.cert, certificate.cert)
    async with asyncio.timeout(30):
        while await served(server) != der(renewed):
            continue
    watching.cancel()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as running:
        yield running


async def test_a_lower_rate_holds_for_the_next_events(house: House) -> None:
    assert house.server is not None
    client = house.client(NodeKey.generate())
    await client.publish("one", kind=1)
    house.server.apply(replace(house.settings, event_rate=Rate(1, 1)))
    outcomes = await client.submit([client.sign(text, kind=1) for text in ("two", "three", "four")])
    assert "rate_limited" in {each.code for each in outcomes if isinstance(each, PosthouseError)}


async def test_a_web_page_may_use_the_relay_once_its_origin_is_listed(house: House) -> None:
    assert house.server is not None
    origin = parse_origin(PAGE)
    assert origin is not None
    async with aiohttp.ClientSession() as session:
        async with session.get(house.url + "/v1/info", headers={"Origin": PAGE}) as refused:
            assert refused.status == 403
        protection = replace(house.settings.protection, origins=(origin,))
        house.server.apply(replace(house.settings, protection=protection))
        async with session.get(house.url + "/v1/info", headers={"Origin": PAGE}) as allowed:
            assert allowed.status == 200
