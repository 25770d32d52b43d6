"""Settings of `relay up` take effect, whether they come from the file, the environment or a flag."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from structlog.testing import capture_logs

from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.model.settings import SETTINGS
from posthouse.model.settings_sources import resolve_settings
from posthouse.relay.process import server_settings
from posthouse.relay.server import RelayServer
from posthouse.relay.wire.accept_results import Accepted, Declined
from posthouse.relay.wire.lock_operations import Acquire
from tests.http.test_outbound import Peer as Unread
from tests.relay.edge import PATIENCE_S, Author

SOURCES = ("file", "environment", "flag")


def resolved(source: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of resolve_settings that give settings by one source."""
    if source == "file":
        return {"file": dict(given)}
    if source == "environment":
        return {"environ": {SETTINGS[name].environment: str(value) for name, value in given.items()}}
    return {"flags": dict(given)}


@asynccontextmanager
async def relay(tmp_path: Path, source: str, **given: Any) -> AsyncIterator[RelayServer]:
    """Run a relay with settings from one source."""
    needed = {"relay.listen": "127.0.0.1:0", "relay.data_dir": str(tmp_path / "relay")}
    values = resolve_settings(**resolved(source, needed | {f"relay.{name}": each for name, each in given.items()}))
    server = RelayServer(server_settings(values))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def busy_writer(server: RelayServer) -> AsyncIterator[None]:
    """Keep the store's writer inside one unit of work."""
    began, go_on = threading.Event(), threading.Event()

    def wait(_unit: object) -> None:
        began.set()
        go_on.wait(PATIENCE_S)

    waiting = server.context.engine.store.submit(wait)
    assert await asyncio.to_thread(began.wait, PATIENCE_S)
    try:
        yield
    finally:
        go_on.set()
        await waiting


@pytest.mark.parametrize("source", SOURCES)
async def test_wait_queue_max_bounds_the_waiters_of_one_lock(tmp_path: Path, source: str) -> None:
    async with relay(tmp_path, source, wait_queue_max=2) as server:
        locks = server.context.engine.locks
        await locks.ask(Author().node, Acquire("build", 60_000))
        waiting = [locks.ask(Author().node, Acquire("build", 5_000, wait_ms=60_000)) for _ in range(2)]
        refusal = await locks.ask(Author().node, Acquire("build", 5_000, wait_ms=60_000))
        assert isinstance(refusal, PosthouseError)
        assert (refusal.code, refusal.fields["limit"]) == ("wait_queue_full", 2)
        elsewhere = locks.ask(Author().node, Acquire("deploy", 5_000, wait_ms=60_000))
        assert not isinstance(await elsewhere, PosthouseError)
        assert not any(each.done() for each in waiting)


@pytest.mark.parametrize("source", SOURCES)
async def test_writer_max_items_bounds_the_items_that_wait_for_the_writer(tmp_path: Path, source: str) -> None:
    async with relay(tmp_path, source, writer_max_items=3) as server, busy_writer(server):
        store = server.context.engine.store
        waiting = [store.submit(lambda unit: None) for _ in range(2)]  # the third is the one that runs
        with pytest.raises(PosthouseError) as refused:
            store.submit(lambda unit: None)
        assert refused.value.code == "store_busy"
        assert not any(each.done() for each in waiting)


@pytest.mark.parametrize("source", SOURCES)
async def test_writer_max_bytes_bounds_the_bytes_that_wait_for_the_writer(tmp_path: Path, source: str) -> None:
    limit = 1024 * 1024
    async with relay(tmp_path, source, writer_max_bytes=limit) as server, busy_writer(server):
        store = server.context.engine.store
        waiting = store.submit(lambda unit: None, size=limit)
        with pytest.raises(PosthouseError) as refused:
            store.submit(lambda unit: None, size=1)
        assert refused.value.code == "store_busy"
        assert not waiting.done()


async def asked(server: RelayServer, **headers: str) -> int:
    """Return the status that a request with these headers gets."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{server.address}/v1/info", headers=headers) as response,
    ):
        return response.status


@pytest.mark.parametrize("source", SOURCES)
async def test_origins_names_the_web_pages_that_may_use_the_relay(tmp_path: Path, source: str) -> None:
    async with relay(tmp_path, source, origins="https://app.example,http://localhost:3000") as server:
        assert await asked(server, Origin="https://app.example") == 200
        assert await asked(server, Origin="http://localhost:3000") == 200
        assert await asked(server, Origin=f"http://{server.address}") == 200
        assert await asked(server, Origin="https://other.example") == 403
        assert await asked(server, Origin="null") == 403


@pytest.mark.parametrize("source", SOURCES)
async def test_hosts_names_the_relay_and_closes_main(tmp_path: Path, source: str) -> None:
    own = Author()
    async with relay(tmp_path, source, hosts="relay.example", admin=own.node) as server:
        assert await asked(server, Host="relay.example") == 200
        assert await asked(server, Host="relay.example", Origin="https://relay.example") == 200
        assert await asked(server, Host="localhost") == 200
        assert await asked(server, Host="other.example") == 403
        assert not server.context.engine.meshes.find("main").row.is_open


@pytest.mark.parametrize("source", SOURCES)
async def test_main_open_false_closes_main(tmp_path: Path, source: str) -> None:
    own = Author()
    async with relay(tmp_path, source) as server:
        assert server.context.engine.meshes.find("main").row.is_open
    async with relay(tmp_path, source, main_open=False, admin=own.node) as server:
        assert not server.context.engine.meshes.find("main").row.is_open


@pytest.mark.parametrize("source", SOURCES)
async def test_outbound_max_bytes_bounds_the_unsent_bytes_of_all_connections(tmp_path: Path, source: str) -> None:
    limit = 2 * 1024 * 1024
    async with relay(tmp_path, source, outbound_max_bytes=limit) as server:
        account = server.context.outbound
        assert account.max_bytes == limit
        first, second = Unread(), Unread()
        for peer in (first, second):
            peer.unsent = limit * 2 // 3
            account.open(cast(asyncio.Transport, peer)).wrote(peer.unsent)
        assert (first.is_dropped, second.is_dropped) == (True, False)


@pytest.mark.parametrize("source", SOURCES)
async def test_store_names_a_database(tmp_path: Path, source: str, database: str) -> None:
    async with relay(tmp_path, source, store=database) as server:
        epoch = server.context.engine.store.epoch
    assert not (tmp_path / "relay" / "relay.db").exists()
    async with relay(tmp_path, source, store=database) as server:
        assert server.context.engine.store.epoch == epoch


@pytest.mark.parametrize("source", SOURCES)
async def test_high_water_names_the_file_of_the_mark(tmp_path: Path, source: str) -> None:
    mark = tmp_path / "mark"
    async with relay(tmp_path, source, high_water=str(mark)) as server:
        assert server.context.engine.store.epoch in mark.read_text()
    assert not (tmp_path / "relay" / "relay.high-water").exists()


async def metrics(url: str, token: str | None = None, socket: Path | None = None) -> tuple[int, str]:
    """Return the status and text of /metrics."""
    connector = None if socket is None else aiohttp.UnixConnector(str(socket))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"{url}/metrics", headers=headers) as response,
    ):
        return response.status, await response.text()


@pytest.mark.parametrize("source", SOURCES)
async def test_metrics_listen_serves_metrics_without_a_token_and_nothing_else(tmp_path: Path, source: str) -> None:
    async with relay(tmp_path, source, metrics_listen="127.0.0.1:0") as server:
        url = f"http://{server.metrics_at}"
        status, text = await metrics(url)
        assert status == 200 and "posthouse_relay_connections" in text
        assert (await metrics(f"http://{server.address}"))[0] == 401
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/v1/info") as response:
                assert response.status == 404
            async with session.get(f"{url}/metrics", headers={"Origin": "https://evil.test"}) as response:
                assert response.status == 403


async def test_metrics_listen_can_be_a_private_unix_socket(tmp_path: Path) -> None:
    socket = tmp_path / "metrics.sock"
    async with relay(tmp_path, "flag", metrics_listen=str(socket)) as server:
        assert server.metrics_at == socket
        assert socket.stat().st_mode & 0o777 == 0o600
        assert (await metrics("http://localhost", socket=socket))[0] == 200
    assert not socket.exists()


async def test_metrics_listen_beyond_this_machine_or_over_a_file_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    for place in ("0.0.0.0:0", "192.0.2.1:9100", str(kept)):
        with pytest.raises(PosthouseError) as refused:
            async with relay(tmp_path, "flag", metrics_listen=place):
                pass
        assert refused.value.code == "metrics_listen_invalid"
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("source", SOURCES)
async def test_metrics_token_file_opens_metrics_on_the_main_port_and_nothing_else(tmp_path: Path, source: str) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef0123\n")
    file.chmod(0o600)
    async with relay(tmp_path, source, metrics_token_file=str(file)) as server:
        url = f"http://{server.address}"
        assert (await metrics(url, "0123456789abcdef0123"))[0] == 200
        assert (await metrics(url, "0123456789abcdef0124"))[0] == 401
        given = {"Authorization": "Bearer 0123456789abcdef0123"}
        async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/meshes", headers=given) as response:
            assert response.status == 401
        file.write_text("another-token-0123456789")
        assert (await metrics(url, "0123456789abcdef0123"))[0] == 401
        assert (await metrics(url, "another-token-0123456789"))[0] == 200
        file.write_text("")
        assert (await metrics(url, ""))[0] == 401


async def test_metrics_token_file_that_holds_no_token_is_refused_at_start(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content in ("", "short", "has spaces in it, really"):
        file.write_text(content)
        file.chmod(0o600)
        with pytest.raises(PosthouseError) as refused:
            async with relay(tmp_path, "flag", metrics_token_file=str(file)):
                pass
        assert refused.value.code == "metrics_token_invalid"


async def dial(
    server: RelayServer,
    stack: AsyncExitStack,
    session: aiohttp.ClientSession,
    headers: dict[str, str] | None = None,
    author: Author | None = None,
) -> str:
    """Log in on a new stream, which stays open, and return the verb of the answer."""
    stream = await stack.enter_async_context(session.ws_connect(f"http://{server.address}/v1/stream", headers=headers))
    hello = await stream.receive_json()
    proof = (author or Author()).proof(hello[1]["relay"], ("challenge", hello[1]["challenge"]))
    await stream.send_json(["AUTH", proof])
    return str((await stream.receive_json())[0])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["connections_max", "connections_per_address"])
async def test_authenticated_connections_are_bounded(tmp_path: Path, source: str, name: str) -> None:
    async with (
        relay(tmp_path, source, **{name: 2}) as server,
        aiohttp.ClientSession() as session,
        AsyncExitStack() as stack,
    ):
        assert [await dial(server, stack, session) for _ in range(3)] == ["AUTHED", "AUTHED", "NOTICE"]


@pytest.mark.parametrize("source", SOURCES)
async def test_authenticated_connections_of_one_key_are_bounded(tmp_path: Path, source: str) -> None:
    greedy = Author()
    async with (
        relay(tmp_path, source, connections_per_node=1) as server,
        aiohttp.ClientSession() as session,
        AsyncExitStack() as stack,
    ):
        answers = [await dial(server, stack, session, author=author) for author in (greedy, greedy, Author())]
        assert answers == ["AUTHED", "NOTICE", "AUTHED"]


@pytest.mark.parametrize("source", SOURCES)
async def test_connections_behind_a_trusted_proxy_count_for_their_callers(tmp_path: Path, source: str) -> None:
    given = {"trusted_proxies": "127.0.0.0/8,::1", "connections_per_address": 1}
    async with (
        relay(tmp_path, source, **given) as server,
        aiohttp.ClientSession() as session,
        AsyncExitStack() as stack,
    ):
        callers = ("203.0.113.1", "203.0.113.2", "203.0.113.1", "2001:db8::1", "2001:db8::2")
        answers = [await dial(server, stack, session, {"X-Forwarded-For": f"198.51.100.9, {each}"}) for each in callers]
        assert answers == ["AUTHED", "AUTHED", "NOTICE", "AUTHED", "NOTICE"]


async def test_unknown_proxy_keeps_limits_per_address_off_and_the_relay_says_so(tmp_path: Path) -> None:
    given = {"behind_proxy": True, "hosts": "relay.example", "admin": Author().node, "connections_per_address": 1}
    with capture_logs() as entries:
        async with (
            relay(tmp_path, "flag", **given) as server,
            aiohttp.ClientSession() as session,
            AsyncExitStack() as stack,
        ):
            assert [await dial(server, stack, session, {"Host": "relay.example"}) for _ in range(3)] == ["AUTHED"] * 3
    (warned,) = [entry for entry in entries if entry["event"] == "address_limits_off"]
    assert "relay.trusted_proxies" in warned["reason"]


@pytest.mark.parametrize("source", SOURCES)
def test_advertise_makes_a_relay_one_of_several_and_needs_a_database(tmp_path: Path, source: str) -> None:
    def settings(**given: Any) -> Any:
        needed = {"relay.data_dir": str(tmp_path)} | {f"relay.{name}": each for name, each in given.items()}
        return server_settings(resolve_settings(**resolved(source, needed)))

    database = "postgresql://relay@db.example/posthouse"
    assert settings(store=database).advertise is None
    assert settings(store=database, advertise="https://one.example:7420/").advertise == "https://one.example:7420"
    refusals = []
    wrong = [{"store": database, "advertise": each} for each in ("one.example:7420", "http://[::1", "http://one/path")]
    for given in ({"advertise": "https://one.example"}, *wrong):
        with pytest.raises(PosthouseError) as refused:
            settings(**given)
        refusals.append(refused.value.code)
    assert refusals == ["advertise_without_store", *["advertise_invalid"] * 3]


@pytest.mark.parametrize("source", SOURCES)
async def test_known_ids_days_is_the_age_from_which_events_are_refused(tmp_path: Path, source: str) -> None:
    author, now_ns = Author(), system_clock().wall_ns()
    raws = [json.dumps(author.event(at_ns=now_ns - age * DAY_S * SECOND_NS)).encode() for age in (29, 31)]
    async with relay(tmp_path, source, known_ids_days=30) as server:
        young, old = await server.context.engine.accept_many(raws)
        assert isinstance(young, Accepted)
        assert isinstance(old, Declined) and old.error.code == "too_old"


@pytest.mark.parametrize("source", SOURCES)
async def test_followers_names_the_nodes_that_may_follow(tmp_path: Path, source: str) -> None:
    node, other = Author().node, Author().node
    async with relay(tmp_path, source, followers=f"{node}, {Author().node}") as server:
        (await server.context.engine.followers.open_copy(node)).close()
        with pytest.raises(PosthouseError) as refused:
            await server.context.engine.followers.open_copy(other)
        assert refused.value.code == "follow_not_allowed"


@pytest.mark.parametrize("source", SOURCES)
async def test_follow_max_bytes_bounds_the_changes_that_are_kept(tmp_path: Path, source: str) -> None:
    node, author = Author().node, Author()
    async with relay(tmp_path, source, followers=node, follow_max_bytes=65_536) as server:
        engine = server.context.engine
        (await engine.followers.open_copy(node)).close()
        for number in range(20):
            await engine.accept(json.dumps(author.event(content=f"{number}" * 4_000)).encode())
        assert engine.store.changes is not None
        assert sum(group.size for group in engine.store.changes.kept()) <= 65_536


@pytest.mark.parametrize("source", SOURCES)
async def test_follow_absent_s_ends_the_recording(tmp_path: Path, source: str) -> None:
    node = Author().node
    async with relay(tmp_path, source, followers=node, follow_absent_s=0.1) as server:
        changes = server.context.engine.store.changes
        assert changes is not None
        (await server.context.engine.followers.open_copy(node)).close()
        async with asyncio.timeout(PATIENCE_S):
            while changes.is_on:  # noqa: ASYNC110 - no event says when
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("source", SOURCES)
async def test_otlp_url_is_the_collector_of_traces(tmp_path: Path, source: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        async with relay(tmp_path, source, otlp_url="collector"):
            pass
    assert refused.value.code == "otlp_url_invalid"
    async with relay(tmp_path, source, otlp_url="http://127.0.0.1:9") as server:
        assert server.context.engine._path.tracer is not None


@pytest.mark.parametrize("source", SOURCES)
async def test_mirrors_names_nodes_and_the_meshes_that_they_may_mirror(tmp_path: Path, source: str) -> None:
    node, other = Author().node, Author().node
    async with relay(tmp_path, source, mirrors=f"{node}/main, {other}") as server:
        rights = server.context.engine.mirroring.rights
        asked = [rights.allow(*pair) for pair in ((node, "main"), (node, "x"), (other, "x"), (Author().node, "main"))]
        assert asked == [True, False, True, False]
