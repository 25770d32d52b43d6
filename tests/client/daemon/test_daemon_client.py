"""DaemonClient against real daemons on the test's loop, plain and async, over the socket and over TCP."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from posthouse import DaemonClient
from posthouse.client.daemon import DaemonEvent
from posthouse.daemon.daemon import Daemon
from posthouse.daemon.settings import DaemonSettings, MeshSettings
from posthouse.files import private_dir, write_atomic
from posthouse.model.errors import PosthouseError, Refused, Transient
from tests.client.house import QUICK, House, open_house

T = TypeVar("T")
BOUND_S = 30


@asynccontextmanager
async def host(house: House, name: str) -> AsyncIterator[Daemon]:
    """A daemon that runs."""
    daemon = Daemon(settings(house, name))
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()


def settings(house: House, name: str) -> DaemonSettings:
    mesh = MeshSettings("main", house.url, pins=house.folder / f"{name}-pins.json", client=QUICK)
    return DaemonSettings(house.folder / name, (mesh,), tcp="on")


def node_of(daemon: Daemon) -> str:
    return next(iter(daemon.meshes.nodes.values())).key.node


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as running:
        yield running


@pytest.fixture
async def hosts(house: House) -> AsyncIterator[tuple[Daemon, Daemon]]:
    async with host(house, "a") as here, host(house, "b") as there:
        yield here, there


async def blocking(work: Callable[[], T]) -> T:
    """Run what a plain program does, beside the daemon's loop."""
    return await asyncio.wait_for(asyncio.to_thread(work), BOUND_S)


@pytest.mark.parametrize("tcp", [False, True], ids=["socket", "tcp"])
async def test_blocking_client_sends_waits_reads_and_marks_as_read(hosts: tuple[Daemon, Daemon], tcp: bool) -> None:
    here, there = hosts

    def send() -> str:
        with DaemonClient(here.directory.root, tcp=tcp) as daemon:
            assert daemon.version().ipc_api == 1
            return daemon.send(node_of(there), "hello", meta={"k": 1}, client_message_id="m").client_message_id

    def read() -> list[str | None]:
        with DaemonClient(there.directory.root, tcp=tcp) as daemon:
            items = daemon.wait(BOUND_S)
            assert daemon.seen([item.id for item in items]) == len(items)
            assert daemon.seen([item.id for item in items]) == 0
            assert daemon.inbox(unread=True) == []
            assert daemon.item(items[0].id).meta == {"k": 1}
            return [item.body for item in items]

    assert await blocking(send) == "m"
    assert await blocking(read) == ["hello"]


@pytest.mark.parametrize("tcp", [False, True], ids=["socket", "tcp"])
async def test_async_client_does_the_same(hosts: tuple[Daemon, Daemon], tcp: bool) -> None:
    here, there = hosts
    async with DaemonClient(here.directory.root, tcp=tcp) as one, DaemonClient(there.directory.root, tcp=tcp) as other:
        waiting = asyncio.create_task(other.wait(BOUND_S))
        accepted = await one.send(node_of(there), "hello")
        (item,) = await waiting
        assert (item.body, item.client_message_id) == ("hello", accepted.client_message_id)
        await other.send(item.sender, "answer", reply_to_id=item.message_id)
        (answer,) = await one.wait(BOUND_S)
        assert (answer.body, answer.reply_to_id) == ("answer", item.message_id)
        assert "posthouse_daemon_requests_total" in await one.metrics()
        states = await one.message(item.message_id)
        assert states["relay"]["id"] == item.message_id
        assert (await one.outbox(status="done"))[0].broker_message_id == item.message_id


async def test_topics_peers_profile_locks_and_history(hosts: tuple[Daemon, Daemon]) -> None:
    here, there = hosts
    async with DaemonClient(here.directory.root) as one, DaemonClient(there.directory.root) as other:
        await connected(one.health, other.health)
        await one.create_topic("news")
        await other.subscribe("news")
        await one.post("news", "extra")
        assert [item.body for item in await other.wait(BOUND_S, topic="news")] == ["extra"]
        assert [each["body"] for each in (await other.history(topic="news"))["messages"]] == ["extra"]
        assert {peer["node"] for peer in (await one.peers())["peers"]} >= {node_of(here), node_of(there)}
        assert (await one.profile(status="dnd"))["applied"] == {"status": "dnd"}
        grant = await one.lock_acquire("db", lease_ms=5_000)
        with pytest.raises(PosthouseError) as held:
            await other.lock_acquire("db", lease_ms=5_000)
        assert held.value.code == "held"
        assert (await one.lock_renew("db", grant.token)).token == grant.token
        await one.lock_release("db", grant.token)
        assert (await other.lock_acquire("db", lease_ms=5_000)).token > grant.token


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not is_so():  # noqa: ASYNC110 - there is no event to wait on
            await asyncio.sleep(0.005)


async def connected(*health: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(BOUND_S):
        for each in health:
            while not getattr(await each(), "connected", False):  # noqa: ASYNC110 - it may have happened before
                await asyncio.sleep(0.01)


async def test_refusal_has_code_hint_and_fields(hosts: tuple[Daemon, Daemon]) -> None:
    here, there = hosts
    async with DaemonClient(here.directory.root) as daemon:
        await daemon.send(node_of(there), "one", client_message_id="same")
        with pytest.raises(Refused) as caught:
            await daemon.send(node_of(there), "two", client_message_id="same")
    failure = caught.value
    assert failure.code == "idempotency_key_reused"
    assert failure.fields["client_message_id"] == "same"
    assert failure.fields["conflict"].endswith("_fingerprint_mismatch")
    assert failure.hint


async def test_requeue_inspect_and_drop(house: House, hosts: tuple[Daemon, Daemon]) -> None:
    here, there = hosts
    await house.down()
    async with DaemonClient(here.directory.root) as daemon:
        sent = await daemon.send(node_of(there), "one")
        assert sent.id is not None
        async with asyncio.timeout(BOUND_S):  # a row that is on its way cannot be requeued
            while (await daemon.outbox_row(sent.id)).row.status != "pending":  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
            made = await daemon.requeue(sent.id, message="two")
        assert made.new_row_id is not None
        found = await daemon.outbox_row(made.new_row_id)
        assert [row.id for row in found.chain] == [sent.id, made.new_row_id]
        with pytest.raises(Refused) as caught:
            await daemon.requeue(sent.id)
        assert (caught.value.code, caught.value.fields["status"]) == ("outbox_row_state", "aborted")


async def test_wrong_token_is_refused(hosts: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    here, _ = hosts
    elsewhere = private_dir(tmp_path / "elsewhere")
    write_atomic(elsewhere / "http.port", (here.directory.root / "http.port").read_bytes())
    write_atomic(elsewhere / "local_token", b"no such token\n")
    async with DaemonClient(elsewhere, tcp=True) as daemon:
        with pytest.raises(Refused) as caught:
            await daemon.health()
    assert caught.value.code == "local_token_wrong"


async def test_missing_daemon_is_unreachable(tmp_path: Path) -> None:
    async with DaemonClient(tmp_path / "none") as daemon:
        for work in (daemon.health(), anext(daemon.events())):
            with pytest.raises(Transient) as caught:
                await work
            assert caught.value.code == "daemon_unreachable"
    with DaemonClient(tmp_path / "none", tcp=True) as plain, pytest.raises(Transient, match="holds no port"):
        plain.health()


async def test_closed_client_refuses_calls(tmp_path: Path) -> None:
    plain = DaemonClient(tmp_path)
    plain.close()
    with pytest.raises(Refused) as caught:
        plain.health()
    assert caught.value.code == "client_closed"


async def test_call_on_a_closed_kept_connection_is_sent_on_a_new_one(house: House) -> None:
    async with host(house, "a") as before:
        place = before.directory.root
        plain = DaemonClient(place)
        assert await blocking(lambda: plain.health().mesh) == "main"
        async with DaemonClient(place) as client:
            assert (await client.health()).mesh == "main"
            await before.stop()
            again = Daemon(settings(house, "a"))
            await again.start()
            assert (await client.health()).mesh == "main"
            assert await blocking(lambda: plain.health().mesh) == "main"
            plain.close()
            await again.stop()


async def test_wait_survives_a_restart_of_the_daemon(house: House) -> None:
    async with host(house, "a") as here, host(house, "b") as there:
        node = node_of(there)
        async with DaemonClient(there.directory.root) as reader, DaemonClient(here.directory.root) as sender:
            waiting = asyncio.create_task(reader.wait(BOUND_S))
            await asyncio.wait([waiting], timeout=0.05)
            await there.stop()
            await sender.send(node, "while you were away")
            again = Daemon(settings(house, "b"))
            await again.start()
            assert [item.body for item in await waiting] == ["while you were away"]
            await again.stop()


async def test_events_continue_without_a_gap_over_restarts(house: House) -> None:
    heard: asyncio.Queue[DaemonEvent] = asyncio.Queue()

    async def listen(place: Path) -> None:
        async with DaemonClient(place) as client:
            async for event in client.events():
                if event.event == "message":
                    heard.put_nowait(event)

    async with host(house, "a") as here:
        there = Daemon(settings(house, "b"))
        await there.start()
        node, place = node_of(there), there.directory.root
        async with DaemonClient(here.directory.root) as sender:
            listening = asyncio.create_task(listen(place))
            await until(lambda: there.context.streams.count == 1)
            bodies: list[str] = []
            for number in range(3):
                await there.stop()
                await sender.send(node, f"m{number}")
                there = Daemon(settings(house, "b"))
                await there.start()
                hearing = asyncio.create_task(heard.get())
                await asyncio.wait([hearing, listening], timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
                assert not listening.done(), listening.exception()
                bodies.append(hearing.result().data["body"])
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        await there.stop()
    assert bodies == ["m0", "m1", "m2"]
    assert heard.empty()


async def test_socket_in_a_directory_with_a_long_name_is_reached(hosts: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    here, _ = hosts
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    shutil.copy(here.directory.root / "local_token", deep)
    (deep / "sock").symlink_to(here.directory.socket)
    async with DaemonClient(deep) as client:
        assert (await client.health()).mesh == "main"
    with DaemonClient(deep) as plain:
        assert await blocking(lambda: plain.health().mesh) == "main"
