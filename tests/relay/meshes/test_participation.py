from __future__ import annotations

import pytest

from posthouse.model.node import Role
from posthouse.relay.engine import RelayEngine
from posthouse.relay.meshes import participation
from posthouse.relay.wire.mesh_rows import AccessRow, Verdict
from tests.relay.authors import ALICE, BOB, CAROL
from tests.relay.meshes.conftest import ADMIN
from tests.relay.meshes.refusal import refused


async def test_topic_is_created_once_and_removed_by_its_creator_or_an_admin(core: RelayEngine) -> None:
    topics = core.participation
    await topics.create_topic(ALICE.node, "main", "news.today")
    with refused("topic_exists"):
        await topics.create_topic(BOB.node, "main", "news.today")
    with refused("right_missing"):
        await topics.remove_topic(BOB.node, "main", "news.today")
    await topics.remove_topic(ALICE.node, "main", "news.today")
    with refused("topic_unknown"):
        await topics.remove_topic(ALICE.node, "main", "news.today")
    await topics.create_topic(ALICE.node, "main", "news.today")
    await topics.remove_topic(ADMIN.node, "main", "news.today")
    assert topics.topics(BOB.node, "main") == []


@pytest.mark.parametrize("topic", ["", "a.*", "a.>", "a..b", "a b", "x" * 161, ".".join("a" * 13)])
async def test_topic_that_is_not_a_literal_subject_is_refused(core: RelayEngine, topic: str) -> None:
    with refused("topic_invalid"):
        await core.participation.create_topic(ALICE.node, "main", topic)


async def test_second_subscription_to_the_same_pattern_changes_nothing(core: RelayEngine) -> None:
    head = (await core.store.extent()).head
    for _ in range(2):
        await core.participation.subscribe(ALICE.node, "main", "news.>")
    assert core.participation.subscriptions(ALICE.node, "main") == ["news.>"]
    for _ in range(2):
        await core.participation.unsubscribe(ALICE.node, "main", "news.>")
    assert core.participation.subscriptions(ALICE.node, "main") == []
    types = [record.type for record in await core.store.journal(head, 10)]
    assert types == ["member.subscribed", "member.unsubscribed"]


async def test_node_without_the_read_right_cannot_subscribe_but_can_unsubscribe(core: RelayEngine) -> None:
    await core.participation.subscribe(ALICE.node, "main", "a")
    await core.administration.save_access(ADMIN.node, AccessRow("main", ALICE.node, read=Verdict.DENY))
    with refused("right_missing"):
        await core.participation.subscribe(ALICE.node, "main", "b")
    await core.participation.unsubscribe(ALICE.node, "main", "a")


async def test_block_is_listed_for_its_owner_until_it_is_lifted(core: RelayEngine) -> None:
    await core.participation.block(ALICE.node, "main", BOB.node)
    assert core.participation.blocks(ALICE.node, "main") == [BOB.node]
    assert core.participation.blocks(BOB.node, "main") == []
    await core.participation.unblock(ALICE.node, "main", BOB.node)
    assert core.participation.blocks(ALICE.node, "main") == []
    with refused("node_id_invalid"):
        await core.participation.block(ALICE.node, "main", "bob")


async def test_rows_of_one_node_and_of_a_mesh_are_bounded(core: RelayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participation, "MAX_SUBSCRIPTIONS", 2)
    for pattern in ("a", "b"):
        await core.participation.subscribe(ALICE.node, "main", pattern)
    with refused("mesh_row_limit"):
        await core.participation.subscribe(ALICE.node, "main", "c")
    monkeypatch.setattr(participation, "MAX_ROWS", 3)
    await core.participation.subscribe(BOB.node, "main", "a")
    with refused("mesh_row_limit"):
        await core.participation.subscribe(CAROL.node, "main", "a")


async def test_subscriptions_go_with_the_member(core: RelayEngine) -> None:
    await core.administration.create_mesh(ALICE.node, "lab")
    await core.administration.save_member(ALICE.node, "lab", BOB.node, "bob", Role.MEMBER)
    await core.participation.subscribe(BOB.node, "lab", "news.>")
    await core.administration.remove_member(ALICE.node, "lab", BOB.node)
    assert (await core.store.mesh_rows()).subscriptions == []
