"""What each role may do in a mesh, operation by operation, over the network as the client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from posthouse.client import Client, Pins
from posthouse.keys import NodeKey, keyfile
from posthouse.model.errors import PosthouseError
from tests.faults.relay_process import RelayProcess

pytestmark = pytest.mark.xdist_group("two-hosts")
MESH = "team"
ROLES = ("outsider", "reader", "member", "admin")
STRANGER = NodeKey(b"s" * 32).node
_numbers = count()


@dataclass
class Stage:
    """A relay with a closed mesh, a key for each role, and an event in the mesh."""

    url: str
    keys: dict[str, NodeKey]
    event_id: str

    def client(self, role: str) -> Client:
        return Client(self.url, self.keys[role], mesh=MESH, pins=Pins(None))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("roles")
    home = folder / "home"
    admin = keyfile.create(home / "key.json")
    keys = {role: NodeKey.generate() for role in ROLES} | {"admin": admin}
    with RelayProcess(folder, home=home) as relay:
        yield Stage(relay.url, keys, asyncio.run(prepare(relay.url, keys)))


async def prepare(url: str, keys: dict[str, NodeKey]) -> str:
    async with Client(url, keys["admin"], mesh=MESH, pins=Pins(None)) as admin:
        await admin.meshes.create(MESH, name="admin")
        await admin.meshes.add_member(MESH, keys["reader"].node, "reader", "reader")
        await admin.meshes.add_member(MESH, keys["member"].node, "member", "member")
        await admin.meshes.create_topic(MESH, "old")
        return (await admin.publish("in the mesh", kind=1)).event.id


async def read_live(client: Client) -> None:
    subscription = await client.subscribe({"kinds": [1], "mesh": MESH})
    await asyncio.wait_for(anext(subscription), 20)


async def set_and_clear_access(client: Client) -> None:
    await client.meshes.set_access(MESH, STRANGER, read="deny")
    await client.meshes.clear_access(MESH, STRANGER)


async def add_and_remove_member(client: Client) -> None:
    await client.meshes.add_member(MESH, STRANGER, f"stranger-{next(_numbers)}")
    await client.meshes.remove_member(MESH, STRANGER)


async def make_and_remove_topic(client: Client) -> None:
    name = f"topic-{next(_numbers)}"
    await client.meshes.create_topic(MESH, name)
    await client.meshes.remove_topic(MESH, name)


async def subscribe_to_topics(client: Client) -> None:
    await client.meshes.subscribe(MESH, "old")
    await client.meshes.subscriptions(MESH)
    await client.meshes.unsubscribe(MESH, "old")


async def block_somebody(client: Client) -> None:
    await client.meshes.block(MESH, STRANGER)
    await client.meshes.blocks(MESH)
    await client.meshes.unblock(MESH, STRANGER)


async def find_event(client: Client) -> None:
    found = await client.query({"mesh": MESH, "kinds": [1]})
    if not found.events:
        raise LookupError("nothing is shown")


async def count_events(client: Client) -> None:
    if not await client.count({"mesh": MESH}):
        raise LookupError("nothing is counted")


Operation = Callable[[Client], Awaitable[object]]
READING: dict[str, Operation] = {
    "query": find_event,
    "count": count_events,
    "subscribe": read_live,
    "list members": lambda client: client.meshes.members(MESH),
    "list topics": lambda client: client.meshes.topics(MESH),
    "subscribe to topics": subscribe_to_topics,
    "block": block_somebody,
}
WRITING: dict[str, Operation] = {
    "publish": lambda client: client.publish("x", kind=1),
    "publish replaceable": lambda client: client.publish("x", kind=10_100),
    "publish addressable": lambda client: client.publish("x", kind=30_100, tags=[("d", "place")]),
    "publish ephemeral": lambda client: client.publish("x", kind=20_102),
    "make and remove a topic": make_and_remove_topic,
}
ADMINISTERING: dict[str, Operation] = {
    "add and remove a member": add_and_remove_member,
    "list access": lambda client: client.meshes.access(MESH),
    "set and clear access": set_and_clear_access,
    "invite": lambda client: client.meshes.invite(MESH),
    "invite an admin": lambda client: client.meshes.invite(MESH, role="admin"),
}
TABLE = [
    (name, operation, least)
    for operations, least in ((READING, "reader"), (WRITING, "member"), (ADMINISTERING, "admin"))
    for name, operation in operations.items()
]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("name", "operation", "least"), TABLE, ids=[name for name, _, _ in TABLE])
async def test_each_role_may_do_its_operations_and_no_more(
    stage: Stage, name: str, operation: Operation, least: str, role: str
) -> None:
    is_allowed = ROLES.index(role) >= ROLES.index(least)
    async with stage.client(role) as client:
        try:
            await asyncio.wait_for(operation(client), 30)
        except LookupError:
            assert not is_allowed
        except PosthouseError as refusal:
            assert not is_allowed, refusal
            assert refusal.code in ("not_member", "right_missing"), refusal.code
        else:
            assert is_allowed, f"{role} could {name}"


@pytest.mark.parametrize("role", ROLES)
async def test_event_of_the_mesh_is_read_by_id_by_its_members_only(stage: Stage, role: str) -> None:
    async with stage.client(role) as client:
        if role != "outsider":
            assert (await client.get(stage.event_id)).event.content == "in the mesh"
            return
        with pytest.raises(PosthouseError) as refused:
            await client.get(stage.event_id)
        assert refused.value.code == "event_unknown"


@pytest.mark.parametrize("role", ("outsider", "reader", "member"))
async def test_no_node_can_make_itself_admin(stage: Stage, role: str) -> None:
    async with stage.client(role) as client:
        with pytest.raises(PosthouseError) as refused:
            await client.meshes.add_member(MESH, client.key.node, role, "admin")
        assert refused.value.code in ("not_member", "right_missing")


async def test_access_row_narrows_a_member_and_the_row_of_a_node_counts_instead_of_everybodys(stage: Stage) -> None:
    async with stage.client("admin") as admin, stage.client("member") as member:
        await admin.meshes.set_access(MESH, "*", write="deny")
        with pytest.raises(PosthouseError) as refused:
            await member.publish("x", kind=1)
        assert refused.value.code == "right_missing"
        await admin.meshes.set_access(MESH, member.key.node)
        await member.publish("x", kind=1)
        await admin.meshes.clear_access(MESH, member.key.node)
        await admin.meshes.clear_access(MESH, "*")


async def test_access_row_never_widens_a_role(stage: Stage) -> None:
    async with stage.client("admin") as admin, stage.client("reader") as reader:
        await admin.meshes.set_access(MESH, reader.key.node, write="allow")
        with pytest.raises(PosthouseError) as refused:
            await reader.publish("x", kind=1)
        assert refused.value.code == "right_missing"
        await admin.meshes.clear_access(MESH, reader.key.node)
