"""trace and history of messages that the relay has pruned: the lake answers, and neither needs Spark."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.client import Client, Pins
from posthouse.client.daemon import DaemonClient
from posthouse.keys import NodeKey
from posthouse.pipeline.archive_history import archive
from posthouse.pipeline.lake import Lake
from tests.cli.command_line import CommandLine
from tests.cli.daemon.hosts import Hosts
from tests.faults.daemon_process import DaemonProcess
from tests.faults.relay_process import RelayProcess
from tests.pipeline.filled_lake import fill_lake

pytestmark = pytest.mark.xdist_group("cli-daemon")
MESSAGES = 12
Run = Callable[..., Any]


class Archived:
    """Two hosts whose messages have gone to the lake."""

    def __init__(self, hosts: Hosts, lake: Path, posts: list[str], direct: dict[str, Any]) -> None:
        self.hosts = hosts
        self.lake = lake
        self.posts = posts
        self.direct = direct


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    folder, admin = tmp_path_factory.mktemp("memory"), NodeKey.generate()
    with (
        RelayProcess(folder / "r", "--admin", admin.node) as relay,
        DaemonProcess(folder / "a", relay.url) as alice,
        DaemonProcess(folder / "b", relay.url) as bob,
    ):
        hosts = Hosts(relay, alice, bob)
        posts, direct = asyncio.run(_correspond(hosts, admin))
        lake = Lake(folder / "lake")
        fill_lake(lake, relay.data_dir / "relay.db", rows_per_file=20)
        asyncio.run(_archive(hosts, admin, lake))
        yield Archived(hosts, lake.path, posts, direct)


async def _correspond(hosts: Hosts, admin: NodeKey) -> tuple[list[str], dict[str, Any]]:
    async with Client(hosts.relay.url, admin, pins=Pins(None)) as client:
        for name, node in (("alice", hosts.alice.node), ("bob", hosts.bob.node)):
            await client.meshes.add_member("main", node, name, "member")
    with DaemonClient(hosts.alice.directory) as alice, DaemonClient(hosts.bob.directory) as bob:
        async with asyncio.timeout(60):
            while not (alice.health().connected and bob.health().connected):  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.05)
        bob.create_topic("news")
        bob.subscribe("news")
        posts = [f"post {number}" for number in range(MESSAGES)]
        for body in posts:
            alice.post("news", body)
        sent = alice.send("bob", "between us")
        seen: list[str] = []
        while len(seen) < MESSAGES + 1:
            items = bob.wait(30)
            assert items, f"only {len(seen)} messages came"
            seen += [item.id for item in items]
            bob.seen([item.id for item in items])
    async with Client(hosts.relay.url, admin, pins=Pins(None)) as client:
        assert sent.message_id is not None
        async with asyncio.timeout(60):  # the daemon confirms by itself
            while (await client.message(sent.message_id)).deliveries[0].state != "confirmed":
                pass
        for number in range(3):  # so that what ended lies before the end of what is archived
            await client.publish(str(number), kind=1)
    return posts, {"id": sent.message_id, "client_message_id": sent.client_message_id}


async def _archive(hosts: Hosts, admin: NodeKey, lake: Lake) -> None:
    async with Client(hosts.relay.url, admin, pins=Pins(None)) as client:
        done = await archive(client, lake, 2**62)
        assert done.emptied >= MESSAGES, done


@pytest.fixture
def alice(cli: CommandLine, archived: Archived, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("POSTHOUSE_PIPELINE_LAKE", str(archived.lake))

    def run(*tokens: str) -> Any:
        outcome = cli(*tokens, "--dir", str(archived.hosts.alice.directory), "--json")
        assert outcome.exit == 0, outcome.err
        return outcome.value

    return run


def test_history_of_a_topic_goes_on_in_the_lake(alice: Run, archived: Archived) -> None:
    got: list[str] = []
    before: list[str] = []
    while True:
        page = alice("history", "#news", "--limit", "5", *before)
        got += [message["body"] for message in page["messages"]]
        if page["before"] is None:
            break
        before = ["--before", page["before"]]
    assert got == list(reversed(archived.posts))


def test_history_with_a_member_names_what_the_lake_holds(alice: Run, archived: Archived) -> None:
    (message,) = alice("history", "bob")["messages"]
    assert (message["message_id"], message["to"]) == (archived.direct["id"], archived.hosts.bob.node)


def test_trace_of_a_pruned_message_shows_all_its_steps(alice: Run, archived: Archived) -> None:
    for key in (archived.direct["client_message_id"], archived.direct["id"]):
        steps = [f"{step['where']}: {step['what']}" for step in alice("trace", key)["steps"]]
        assert {"relay: queued for bob", "relay: sent to bob", "relay: confirmed by bob"} < set(steps), steps


def test_without_a_lake_only_the_steps_of_the_relay_are_shown(
    alice: Run, archived: Archived, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POSTHOUSE_PIPELINE_LAKE", str(tmp_path / "nowhere"))
    assert alice("history", "#news")["messages"] == []
    steps = [step["what"] for step in alice("trace", archived.direct["id"])["steps"]]
    assert "confirmed by bob" not in steps


def test_the_lake_is_read_without_spark(archived: Archived) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from posthouse.pipeline.lake.lookup import Lookup\nfrom posthouse.pipeline.lake import Lake\n"
        f"found = Lookup(Lake(Path({str(archived.lake)!r}))).states({archived.direct['id']!r})\n"
        "import json; print(json.dumps([found['deliveries'][0]['state'], 'pyspark' in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == ["confirmed", False]
