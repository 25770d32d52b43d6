"""`posthouse relay up` as a process: ready, ended, refused."""

from __future__ import annotations

import asyncio
import signal
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from tests.relay.edge import PATIENCE_S, Author
from tests.relay.process.relay import refused, relay_process

CERTIFICATE = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


async def test_relay_says_where_it_listens_and_answers_at_once(tmp_path: Path) -> None:
    async with relay_process(tmp_path) as relay, aiohttp.ClientSession() as session:
        async with session.get(relay.ready["url"] + "/healthz") as response:
            assert response.status == 200
        async with session.get(relay.ready["url"] + "/v1/info") as response:
            assert (await response.json())["relay"] == relay.ready["relay"]
        assert await relay.end() == 0


async def test_relay_keeps_its_key_and_its_files_private(tmp_path: Path) -> None:
    async with relay_process(tmp_path) as first:
        assert await first.end() == 0
    async with relay_process(tmp_path) as second:
        assert second.ready["relay"] == first.ready["relay"]
    data_dir = Path(first.ready["data_dir"])
    assert data_dir == tmp_path / ".posthouse" / "relay"
    check_private(data_dir)


def check_private(data_dir: Path) -> None:
    assert data_dir.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in data_dir.iterdir()}
    assert {"key.json", "relay.db"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_relay_ends_gracefully_while_streams_are_open(tmp_path: Path, number: int) -> None:
    event = Author().event(content="the last")
    async with (
        relay_process(tmp_path) as relay,
        aiohttp.ClientSession() as session,
        session.ws_connect(relay.ready["url"] + "/v1/stream") as socket,
    ):
        await socket.receive()
        await socket.send_json(["EVENT", event])
        assert (await socket.receive_json())[2] is True
        ending = asyncio.create_task(relay.end(number))
        async with asyncio.timeout(PATIENCE_S):
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 1001
        assert await ending == 0
    async with (
        relay_process(tmp_path) as again,
        aiohttp.ClientSession() as session,
        session.post(again.ready["url"] + "/v1/events", json=event) as response,
    ):
        assert response.status == 200, "what was answered is there"


async def test_second_relay_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with relay_process(tmp_path) as first:
        code, problem = await refused(tmp_path, "--listen", "127.0.0.1:0")
        assert (code, problem["code"], problem["pid"]) == (1, "relay_running", first.process.pid)
        assert first.process.returncode is None


async def test_port_in_use_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with relay_process(tmp_path) as first:
        code, problem = await refused(
            tmp_path, "--listen", first.ready["listen"], "--data-dir", str(tmp_path / "other")
        )
    assert (code, problem["code"]) == (5, "listen_failed")


async def test_listening_beyond_loopback_is_refused_with_a_hint(tmp_path: Path) -> None:
    for listen in ("0.0.0.0:0", "[::]:0"):
        code, problem = await refused(tmp_path, "--listen", listen)
        assert (code, problem["code"]) == (2, "listen_unprotected")
        assert "--tls-cert" in problem["hint"] and "--behind-proxy" in problem["hint"]
    code, problem = await refused(tmp_path, "--listen", "0.0.0.0:0", "--behind-proxy")
    assert (code, problem["code"]) == (2, "listen_without_admin")
    assert "--admin" in problem["hint"]
    assert not (tmp_path / ".posthouse" / "relay").exists(), "nothing is made by a refused start"


async def test_relay_behind_a_proxy_closes_main_and_answers_to_its_public_name(tmp_path: Path) -> None:
    admin, stranger = Author(), Author()
    proxied = ("--behind-proxy", "--hosts", "relay.example", "--admin", admin.node)
    async with (
        relay_process(tmp_path, "--listen", "0.0.0.0:0", *proxied) as relay,
        aiohttp.ClientSession(headers={"Host": "relay.example"}) as session,
    ):
        url = relay.ready["url"].replace("0.0.0.0", "127.0.0.1")
        async with session.post(url + "/v1/events", json=stranger.event()) as response:
            assert (await response.json())["code"] == "not_member"
        async with session.post(url + "/v1/events", json=admin.event()) as response:
            assert response.status == 201
        async with session.get(url + "/v1/info", headers={"Host": "192.0.2.1"}) as response:
            assert (await response.json())["code"] == "host_refused"


async def test_behind_proxy_closes_main_on_loopback_and_needs_hosts_and_an_administrator(tmp_path: Path) -> None:
    admin, stranger = Author(), Author()
    assert (await refused(tmp_path, "--behind-proxy", "--hosts", "relay.example"))[1]["code"] == "listen_without_admin"
    code, problem = await refused(tmp_path, "--behind-proxy", "--admin", admin.node)
    assert (code, problem["code"]) == (2, "hosts_missing")
    assert "--hosts" in problem["hint"]
    async with relay_process(tmp_path) as opened:  # main is open in this store until now
        assert await opened.end() == 0
    proxied = ("--behind-proxy", "--hosts", "relay.example", "--admin", admin.node)
    async with relay_process(tmp_path, *proxied) as relay, aiohttp.ClientSession() as session:
        async with session.post(relay.ready["url"] + "/v1/events", json=stranger.event()) as response:
            assert (await response.json())["code"] == "not_member"
        assert await relay.end() == 0
        assert "mesh main is open" not in await relay.log()


async def test_start_says_that_main_is_open_to_every_local_key(tmp_path: Path) -> None:
    async with relay_process(tmp_path) as relay:
        assert await relay.end() == 0
        assert "mesh main is open to every local key" in await relay.log()
    own = Author()
    async with relay_process(tmp_path, "--no-main-open", "--admin", own.node) as relay:
        assert await relay.end() == 0
        assert "mesh main is open" not in await relay.log()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*CERTIFICATE, "-keyout", key, "-out", cert, *names], check=True, capture_output=True)
    return cert, key


async def test_relay_speaks_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    context = ssl.create_default_context(cafile=str(cert))
    async with (
        relay_process(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)) as relay,
        aiohttp.ClientSession() as session,
    ):
        assert relay.ready["url"].startswith("https://")
        async with session.get(relay.ready["url"] + "/healthz", ssl=context) as response:
            assert response.status == 200
        async with session.ws_connect(relay.ready["url"] + "/v1/stream", ssl=context) as socket:
            assert (await socket.receive_json())[0] == "HELLO"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--listen", "nonsense"], "listen_invalid"),
        (["--listen", "127.0.0.1:99999"], "listen_invalid"),
        (["--listen", "no.such.host.invalid:1"], "listen_invalid"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "/nowhere"], "tls_invalid"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"], "tls_invalid"),
        (["--listen", "127.0.0.1:0", "--admin", "me"], "node_id_invalid"),
    ],
)
async def test_invalid_option_is_refused(tmp_path: Path, options: list[str], code: str) -> None:
    exit_code, problem = await refused(tmp_path, *options)
    assert problem["code"] == code
    assert exit_code in (1, 2, 4)


@pytest.mark.parametrize(("hosts", "other_host"), [((), 200), (("--hosts", "relay.example"), 403)])
async def test_tls_listener_beyond_loopback_serves_the_hosts_it_was_given_or_any(
    tmp_path: Path, certificate: tuple[Path, Path], hosts: tuple[str, ...], other_host: int
) -> None:
    cert, key = certificate
    context = ssl.create_default_context(cafile=str(cert))
    options = ("--listen", "0.0.0.0:0", "--tls-cert", str(cert), "--tls-key", str(key), "--admin", Author().node)
    async with relay_process(tmp_path, *options, *hosts) as relay, aiohttp.ClientSession() as session:
        url = relay.ready["url"].replace("0.0.0.0", "127.0.0.1") + "/v1/info"

        async def asked(**headers: str) -> int:
            async with session.get(url, ssl=context, headers=headers) as response:
                return response.status

        assert await asked(Host="relay.example:7420") == 200
        assert await asked(Host="other.example") == other_host
        assert await asked(Host="relay.example:7420", Origin="https://relay.example:7420") == 200
        assert await asked(Host="relay.example:7420", Origin="http://relay.example:7420") == 403
        assert await asked(Host="relay.example:7420", Origin="https://evil.test") == 403
