"""One daemon for a home: several meshes in one process, their mail merged, and directories of version 1."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posthouse.client import Pins
from posthouse.client.daemon import AsyncDaemonClient, DaemonEvent, daemon_address
from posthouse.daemon.directory import SCHEMA_VERSION, DaemonDirectory
from posthouse.daemon.inbox.inbox_items import NewItem
from posthouse.keys import NodeKey, keyfile
from posthouse.model.clock import SystemClock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import SECOND_NS
from posthouse.sqlite.store_lock import StoreLock
from tests.client.house import ADMIN, House, open_house
from tests.client.waiting import PATIENCE_S
from tests.daemon.hosts import Host, eventually, make_host, running

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
async def relays(tmp_path: Path) -> AsyncIterator[tuple[House, House]]:
    async with AsyncExitStack() as stack:
        made = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            made.append(await stack.enter_async_context(open_house(tmp_path / name)))
        yield made[0], made[1]


async def open_team(house: House) -> None:
    async with house.client(ADMIN) as admin:
        await admin.meshes.create("team", is_open=True)


def two_meshes(folder: Path, relays: tuple[House, House], name: str = "a", **settings: Any) -> Host:
    """A host with the mesh main at the first relay and the mesh team at the second."""
    host = make_host(folder, relays[0].url, name, **settings)
    main = host.settings.meshes[0]
    host.settings = replace(host.settings, meshes=(main, replace(main, mesh="team", relay=relays[1].url)))
    return host


async def states(host: Host) -> dict[str, Any]:
    return {each["mesh"]: each for each in (await host.get("/v1/meshes"))["items"]}


async def all_admitted(host: Host) -> Any:
    return await eventually(lambda: states(host), lambda found: all(each["admitted"] for each in found.values()))


async def test_one_daemon_serves_two_meshes_with_a_key_each_and_reads_them_merged(
    tmp_path: Path, relays: tuple[House, House]
) -> None:
    await open_team(relays[1])
    here, there = two_meshes(tmp_path, relays), two_meshes(tmp_path, relays, "b")
    async with running(here, there):
        found, others = await all_admitted(here), await all_admitted(there)
        assert found["main"]["node"] != found["team"]["node"]
        order = ["team", "main", "team"]
        for number, mesh in enumerate(order):
            sent = await there.send(found[mesh]["node"], f"m{number}", mesh=mesh)
            assert sent.status == 202
            await here.until_bodies(number + 1)
        items = (await here.get("/v1/inbox", unread="true"))["items"]
        assert [(each["body"], each["mesh"]) for each in items] == [("m0", "team"), ("m1", "main"), ("m2", "team")]
        assert [each["sender"] for each in items] == [others[mesh]["node"] for mesh in order]
        only = await here.ask("GET", "/v1/inbox", headers={"Posthouse-Mesh": "main"})
        assert [each["body"] for each in only["items"]] == ["m1"]
        first = (await here.get("/v1/inbox", unread="true", limit=1)).body
        rest = (await here.get("/v1/inbox", unread="true", after=first["next"])).body
        assert [each["body"] for each in first["items"] + rest["items"]] == ["m0", "m1", "m2"]
        assert (await here.post("/v1/inbox/seen", ids=[each["id"] for each in items]))["count"] == 3


class SetClock(SystemClock):
    """The machine's clock, which a test sets back."""

    def __init__(self) -> None:
        super().__init__()
        self.behind_s = 0

    def wall_ns(self) -> int:
        return SystemClock.wall_ns() - self.behind_s * SECOND_NS


async def put_mail(host: Host, clock: SetClock, meshes: str, count: int = 1) -> list[str]:
    """Put messages into the inboxes of main (m) and team (t), while the clock is set back ever further."""
    bodies = []
    for mesh in meshes:
        clock.behind_s += 600
        node = host.daemon.meshes.get("main" if mesh == "m" else "team")
        for _ in range(count):
            item_id = node.inbox.minter.mint()
            bodies.append(f"{mesh} {item_id}")
            await node.inbox.put([plain_item(item_id, node.mesh, node.key.node, bodies[-1])])
    return bodies


def plain_item(item_id: str, mesh: str, sender: str, body: str) -> NewItem:
    return NewItem(item_id, item_id, item_id, mesh, None, sender, None, body, "", None, "next", None, None)


def without_relays(folder: Path, clock: SetClock) -> Host:
    host = make_host(folder, NOWHERE, clock=clock)
    main = host.settings.meshes[0]
    host.settings = replace(host.settings, meshes=(main, replace(main, mesh="team")))
    return host


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("meshes", ["mtmtmtm", "mmmttt", "ttttmmm", "mmm"])
async def test_pages_over_several_meshes_show_all_mail_once_although_the_clock_was_set_back(
    tmp_path: Path, meshes: str, order: str
) -> None:
    clock = SetClock()
    host = without_relays(tmp_path, clock)
    async with running(host):
        sent = await put_mail(host, clock, meshes)
        shown: list[str] = []
        bound: dict[str, str] = {}
        while True:
            page = (await host.get("/v1/inbox", order=order, limit=2, **bound)).body
            shown += [item["body"] for item in page["items"]]
            if page["next"] is None:
                break
            bound = {"after" if order == "oldest" else "before": page["next"]}
        assert sorted(shown) == sorted(sent)
        for mesh in "mt":
            mine = [body for body in shown if body[0] == mesh]
            assert mine == sorted(mine, reverse=order == "newest"), "each mesh keeps its order"


async def test_rows_sent_over_several_meshes_are_paged_once_although_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = SetClock()
    host = without_relays(tmp_path, clock)
    async with running(host):
        nodes = {mesh: state["node"] for mesh, state in (await states(host)).items()}
        for number, mesh in enumerate(["main", "team", "main", "team", "team"]):
            clock.behind_s += 600
            await host.send(nodes[mesh], f"{number}", client_message_id=f"{number}", mesh=mesh)
        for order, name in (("oldest", "after"), ("newest", "before")):
            shown: list[str] = []
            bound: dict[str, str] = {}
            while True:
                page = (await host.get("/v1/outbox", order=order, limit=2, **bound)).body
                shown += [row["client_message_id"] for row in page["items"]]
                if page["next"] is None:
                    break
                bound = {name: page["next"]}
            assert sorted(shown) == list("01234")


async def next_body(events: AsyncIterator[DaemonEvent]) -> str:
    """Return the text of the next message that an event stream tells."""
    async with asyncio.timeout(PATIENCE_S):
        while (event := await anext(events)).event != "message":
            pass
    return str(event.data["body"])


async def test_an_event_stream_that_resumes_misses_no_mesh_although_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = SetClock()
    host = without_relays(tmp_path, clock)
    async with running(host):
        first = await put_mail(host, clock, "tm")
        client = AsyncDaemonClient(daemon_address(tmp_path / "a", None))
        newest = await client.inbox(order="oldest")
        events = client.events(newest[0].id)
        told = [await next_body(events)]
        assert told == [body for body in first if body != newest[0].body]
        await host.down()
        await host.up()
        later = await put_mail(host, clock, "tmt")
        while len(told) < 4:
            told.append(await next_body(events))
        assert sorted(told[1:]) == sorted(later)
        await client.close()


async def id_of(host: Host, body: str) -> str:
    items = (await host.get("/v1/inbox", order="oldest", limit=1000))["items"]
    return str(next(item["id"] for item in items if item["body"] == body))


async def test_a_long_backlog_of_two_meshes_is_streamed_although_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = SetClock()
    host = without_relays(tmp_path, clock)
    async with running(host):
        [first] = await put_mail(host, clock, "m")
        bodies = await put_mail(host, clock, "mtm", 110)
        client = AsyncDaemonClient(daemon_address(tmp_path / "a", None))
        events = client.events(await id_of(host, first))
        sent = [body for body in bodies if body[0] == "m"]
        assert [await next_body(events) for _ in sent] == sent
        await client.close()


async def test_mesh_that_is_not_served_is_refused_and_names_those_that_are(house: House, alice: Host) -> None:
    refused = await alice.send(alice.node, "x", mesh="other")
    assert (refused.status, refused["error"], refused["served"]) == (404, "mesh_not_served", "main")
    twice = await alice.ask("GET", "/v1/inbox?mesh=main", headers={"Posthouse-Mesh": "other"})
    assert (twice.status, twice["error"]) == (400, "parameter_invalid")


async def test_mesh_whose_relay_has_another_key_is_shown_as_failed_and_the_others_go_on(
    tmp_path: Path, relays: tuple[House, House]
) -> None:
    host = two_meshes(tmp_path, relays)
    pins = host.settings.meshes[1].pins
    assert pins is not None
    Pins(pins).check_relay(relays[1].url, NodeKey.generate().node)
    async with running(host):
        failed = await eventually(lambda: states(host), lambda found: found["team"]["state"] == "failed")
        assert failed["team"]["error"] == "relay_key_changed"
        await host.connected()
        assert (await host.send(host.node, "still here")).status == 202
        await host.until_bodies(1)
        assert not host.daemon._ended.is_set()


async def test_mesh_whose_directory_is_damaged_does_not_stop_the_others(
    tmp_path: Path, relays: tuple[House, House]
) -> None:
    host = two_meshes(tmp_path, relays)
    async with running(host):
        await host.connected()
    (tmp_path / "a" / "team" / "outbox.db").write_bytes(b"not a database" * 500)
    async with running(host):
        await host.connected()
        assert (await states(host))["team"]["error"] == "outbox_corrupt"
        refused = await host.send(host.node, "x", mesh="team")
        assert refused["error"] == "outbox_corrupt"


def make_version_1(root: Path, former: Path) -> None:
    """Turn the directory of a daemon into one of version 1: everything of its mesh in one directory."""
    for path in (root / "main").iterdir():
        if path.name not in ("identity.json", "schema_version", "daemon.lock"):
            path.rename(former / path.name) if former != root else shutil.move(path, root / path.name)
    if former != root:
        (root / "local_token").rename(former / "local_token")
    for name in ("identity.json", "schema_version", "daemon.lock"):
        (root / "main" / name).unlink(missing_ok=True)
    (root / "schema_version").unlink()
    (former / "schema_version").write_text("1\n")


@pytest.mark.parametrize("layout", ["home", "dir"])
async def test_directory_of_version_1_is_upgraded_and_loses_nothing(house: House, tmp_path: Path, layout: str) -> None:
    host = make_host(tmp_path, house.url, "old")
    root = tmp_path / "old"
    async with running(host):
        node, token = host.node, host.daemon.directory.token()
        await host.connected()
        await host.send(node, "kept", client_message_id="c1")
        await host.until_bodies(1)
        await house.down()
        await host.send(NodeKey.generate().node, "waits", client_message_id="c2")
    make_version_1(root, root / "main" if layout == "home" else root)
    (root / ("main" if layout == "home" else ".") / "sock").touch()
    async with running(host):
        assert (host.node, host.daemon.directory.token()) == (node, token)
        assert await host.bodies() == ["kept"]
        assert (await host.row("c2"))["status"] == "pending"
        assert DaemonDirectory(root).meshes() == ["main"]
        assert not (root / "main" / "local_token").exists()
    assert {(root / "schema_version").read_text(), (root / "main" / "schema_version").read_text()} == {
        f"{SCHEMA_VERSION}\n"
    }


async def test_daemon_of_version_1_that_still_runs_keeps_the_new_one_out(house: House, tmp_path: Path) -> None:
    host = make_host(tmp_path, house.url, "old")
    async with running(host):
        pass
    make_version_1(tmp_path / "old", tmp_path / "old" / "main")
    lock = StoreLock(tmp_path / "old" / "main" / "daemon", exclusive=True)
    try:
        with pytest.raises(PosthouseError, match="already running"):
            await host.up()
    finally:
        lock.close()
    async with running(host):
        await host.connected()


async def refusal(host: Host) -> str:
    with pytest.raises(PosthouseError) as caught:
        async with running(host):
            pass
    return caught.value.code


async def test_lost_key_is_an_error_and_never_a_new_identity(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        node = host.node
    key = tmp_path / "a" / "main" / "keypair.json"
    key.rename(tmp_path / "safe.json")
    for _ in range(2):
        assert await refusal(host) == "identity_lost"
        assert not key.exists()
    (tmp_path / "safe.json").rename(key)
    async with running(host):
        assert host.node == node


async def test_directory_is_for_one_mesh_and_one_key(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        node = host.node
    shutil.copytree(tmp_path / "a" / "main", tmp_path / "a" / "team")
    other = replace(host.settings.meshes[0], mesh="team")
    copy = Host(replace(host.settings, meshes=(other,)))
    assert await refusal(copy) == "identity_mismatch"
    path = tmp_path / "a" / "main" / "keypair.json"
    path.unlink()
    keyfile.create(path)
    assert await refusal(host) == "identity_mismatch"
    assert json.loads((tmp_path / "a" / "main" / "identity.json").read_text())["node"] == node


async def test_ephemeral_start_never_touches_a_persistent_identity(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        await host.send(NodeKey.generate().node, "waits", client_message_id="c")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    brief = make_host(tmp_path, NOWHERE, is_ephemeral=True)
    assert await refusal(brief) == "identity_is_persistent"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")} == before
    async with running(host):
        assert (await host.row("c"))["status"] == "pending"
