"""The guard of webhooks: private addresses in every spelling, names that change, plain HTTP, listed networks."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from posthouse.model.clock import system_clock
from posthouse.model.webhook import Outcome
from posthouse.relay.webhooks.address_guard import AddressGuard
from posthouse.relay.webhooks.sending import SendingSettings, WebhookSender
from tests.relay.edge import running
from tests.relay.webhooks.receivers import LOOPBACK, Receiver, refused

PRIVATE = (
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "::",
    "fe80::1",
    "fd00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
)


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not AddressGuard().may_connect(ip_address(address), is_plain=False)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1"])
def test_a_public_address_is_allowed_with_tls_only(address: str) -> None:
    assert AddressGuard().may_connect(ip_address(address), is_plain=False)
    assert not AddressGuard().may_connect(ip_address(address), is_plain=True)


def test_a_listed_network_is_allowed_without_tls_also_in_its_ipv6_spelling() -> None:
    guard = AddressGuard([ip_network("10.0.0.0/8")])
    for address in ("10.1.2.3", "::ffff:10.1.2.3"):
        assert guard.may_connect(ip_address(address), is_plain=True)
    assert not guard.may_connect(ip_address("192.168.1.1"), is_plain=True)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/hook",
        "https://[::1]/hook",
        "https://127.1/hook",
        "https://2130706433/hook",
        "https://0x7f.1/hook",
        "https://localhost/hook",
        "http://93.184.216.34/hook",
    ],
)
async def test_a_webhook_to_such_an_address_is_refused_when_it_is_added(tmp_path: Path, url: str) -> None:
    async with running(tmp_path / "relay") as edge:
        reply = await refused(edge, edge.admin, url)
        assert (reply.status, reply.code) == (403, "webhook_address_refused")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "https://",
        "https://user:secret@example.org/",
        "https://example.org/#part",
        "hook",
        "https://exa mple.org/",
        "https://example.org:99999/",
    ],
)
async def test_what_is_no_url_of_a_webhook_is_refused(tmp_path: Path, url: str) -> None:
    async with running(tmp_path / "relay", sending=LOOPBACK) as edge:
        assert (await refused(edge, edge.admin, url)).code == "webhook_url_invalid"


async def test_a_name_that_changes_to_a_private_address_later_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    """The check and the connection use one answer of the name server: each answer here is another one."""
    port = int(receiver.url.rpartition(":")[2].partition("/")[0])
    answers = [["93.184.216.34"], ["127.0.0.1"]]
    asked: list[str] = []

    async def getaddrinfo(_loop: Any, host: str, port: int, **_options: Any) -> list[Any]:
        asked.append(host)
        addresses = answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(type(asyncio.get_running_loop()), "getaddrinfo", getaddrinfo, raising=False)
    sender = WebhookSender(SendingSettings(timeout_s=0.5), system_clock())
    await sender.guard.check_url(f"https://rebinding.example:{port}/")
    attempt = await sender.post(f"https://rebinding.example:{port}/", b"{}", {})
    await sender.close()
    assert (attempt.outcome, asked) == (Outcome.RETRY, ["rebinding.example", "rebinding.example"])
    assert "must not connect" in attempt.text
    assert receiver.requests == []


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    sender = WebhookSender(LOOPBACK, system_clock())
    attempt = await sender.post(receiver.url, b"{}", {})
    await sender.close()
    assert (attempt.outcome, len(receiver.requests)) == (Outcome.SENT, 1)


async def test_an_answer_that_does_not_come_in_time_is_a_failure_to_retry() -> None:
    sender = WebhookSender(SendingSettings(networks=LOOPBACK.networks, timeout_s=0.2), system_clock())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        attempt = await sender.post(f"http://127.0.0.1:{silent.getsockname()[1]}/", b"{}", {})
    await sender.close()
    assert (attempt.outcome, attempt.text) == (Outcome.RETRY, "no answer within 0.2 s")


async def test_retry_after_is_respected_within_an_hour(receiver: Receiver) -> None:
    sender = WebhookSender(LOOPBACK, system_clock())
    receiver.answer = lambda _request: 429
    found = []
    for value in ("7", "999999", "soon", "-1"):
        receiver.headers = {"Retry-After": value}
        found.append((await sender.post(receiver.url, b"{}", {})).retry_after_s)
    await sender.close()
    assert found == [7.0, 3600.0, 0.0, 0.0]
