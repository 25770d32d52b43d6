from __future__ import annotations

import asyncio
from functools import partial

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.event import encode_event
from posthouse.model.filters import Filter
from posthouse.model.node import Role
from posthouse.relay.accept.mesh_registry import Right
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.mesh_rows import AccessRow, MemberRow, Verdict
from tests.relay.accept.answers import code
from tests.relay.authors import ALICE, BOB, CAROL
from tests.relay.meshes.conftest import ADMIN
from tests.relay.meshes.refusal import refused


async def closed_mesh(core: RelayEngine) -> None:
    """Make the mesh lab: ALICE administers, BOB is a member, CAROL a reader."""
    await core.administration.create_mesh(ALICE.node, "lab", name="alice")
    await core.administration.save_member(ALICE.node, "lab", BOB.node, "bob", Role.MEMBER)
    await core.administration.save_member(ALICE.node, "lab", CAROL.node, "carol", Role.READER)


async def test_main_is_open_and_its_admin_is_listed(core: RelayEngine) -> None:
    assert code(await core.accept(ALICE.raw())) == "201"
    assert [member.node for member in core.administration.members(BOB.node, "main")] == [ADMIN.node]
    assert Right.ADMINISTER in core.meshes.rights(ADMIN.node, "main")
    assert Right.ADMINISTER not in core.meshes.rights(ALICE.node, "main")


async def test_each_role_has_its_rights_and_no_more(core: RelayEngine) -> None:
    await closed_mesh(core)
    event = ALICE.event(1, ("mesh", "lab"))
    assert code(await core.accept(encode_event(event))) == "201"
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "201"
    assert code(await core.accept(CAROL.raw(1, ("mesh", "lab")))) == "right_missing"
    assert code(await core.accept(ADMIN.raw(1, ("mesh", "lab")))) == "not_member"
    confirmation = CAROL.raw(1001, ("mesh", "lab"), ("p", ALICE.node), ("e", event.id))
    assert code(await core.accept(confirmation)) == "confirmation_without_effect"  # allowed, but nothing is queued
    for reader in (ALICE, BOB, CAROL):
        assert (await core.event(reader.node, event.id)).seq
    with refused("event_unknown"):
        await core.event(ADMIN.node, event.id)
    with refused("not_member"):
        await core.query(ADMIN.node, [Filter(mesh="lab")])
    with refused("right_missing"):
        await core.administration.save_member(BOB.node, "lab", ADMIN.node, "x", Role.MEMBER)
    with refused("right_missing"):
        await core.participation.create_topic(CAROL.node, "lab", "news")


async def test_direct_message_is_hidden_from_the_admin_of_its_mesh(core: RelayEngine) -> None:
    await closed_mesh(core)
    message = BOB.event(1000, ("mesh", "lab"), ("p", CAROL.node), ("c", "1"))
    assert code(await core.accept(encode_event(message))) == "201"
    assert (await core.event(CAROL.node, message.id)).seq
    with refused("event_unknown"):
        await core.event(ALICE.node, message.id)


async def test_access_row_narrows_at_once_and_can_be_taken_back(core: RelayEngine) -> None:
    await closed_mesh(core)
    await core.administration.save_access(ALICE.node, AccessRow("lab", "*", write=Verdict.DENY))
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "right_missing"
    await core.administration.save_access(ALICE.node, AccessRow("lab", BOB.node))
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "201"
    await core.administration.remove_access(ALICE.node, "lab", BOB.node)
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "right_missing"
    assert [row.node for row in core.administration.access(ALICE.node, "lab")] == ["*"]


async def test_removed_member_of_a_closed_mesh_can_do_nothing_more(core: RelayEngine) -> None:
    await closed_mesh(core)
    await core.administration.remove_member(ALICE.node, "lab", BOB.node)
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "not_member"
    with refused("member_unknown"):
        await core.administration.remove_member(ALICE.node, "lab", BOB.node)


async def test_name_is_unique_in_a_mesh_and_free_in_another(core: RelayEngine) -> None:
    await closed_mesh(core)
    with refused("member_name_taken"):
        await core.administration.save_member(ALICE.node, "lab", ADMIN.node, "bob", Role.MEMBER)
    await core.administration.create_mesh(BOB.node, "other", name="bob")
    await core.administration.save_member(ALICE.node, "lab", BOB.node, "robert", Role.MEMBER)
    await core.administration.save_member(ALICE.node, "lab", ADMIN.node, "bob", Role.MEMBER)


async def test_two_members_who_want_one_name_at_once_do_not_both_get_it(core: RelayEngine) -> None:
    await core.administration.create_mesh(ALICE.node, "lab")
    tries = [core.administration.save_member(ALICE.node, "lab", who.node, "x", Role.MEMBER) for who in (BOB, CAROL)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    (refusal,) = [answer for answer in answers if isinstance(answer, PosthouseError)]
    assert refusal.code == "member_name_taken"


async def test_last_admin_can_neither_leave_nor_lose_the_role(core: RelayEngine) -> None:
    await closed_mesh(core)
    with refused("last_admin"):
        await core.administration.remove_member(ALICE.node, "lab", ALICE.node)
    with refused("last_admin"):
        await core.administration.save_member(ALICE.node, "lab", ALICE.node, "alice", Role.MEMBER)


async def test_node_lists_itself_in_an_open_mesh_only_and_as_no_more_than_it_is(core: RelayEngine) -> None:
    await core.administration.save_member(BOB.node, "main", BOB.node, "bob", Role.MEMBER)
    with refused("right_missing"):
        await core.administration.save_member(BOB.node, "main", BOB.node, "bob", Role.ADMIN)
    with refused("right_missing"):
        await core.administration.save_member(BOB.node, "main", CAROL.node, "carol", Role.MEMBER)
    await core.administration.create_mesh(ALICE.node, "lab")
    with refused("not_member"):
        await core.administration.save_member(BOB.node, "lab", BOB.node, "bob", Role.MEMBER)


async def test_mesh_is_created_once(core: RelayEngine) -> None:
    await core.administration.create_mesh(ALICE.node, "lab")
    with refused("mesh_exists"):
        await core.administration.create_mesh(BOB.node, "lab")
    with refused("mesh_name_invalid"):
        await core.administration.create_mesh(BOB.node, "a b")
    with refused("mesh_name_invalid"):
        await core.administration.create_mesh(BOB.node, "x" * 65)


async def test_closing_a_mesh_leaves_listed_members_only(core: RelayEngine) -> None:
    await core.administration.create_mesh(ALICE.node, "lab", is_open=True)
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "201"
    await core.administration.set_open(ALICE.node, "lab", is_open=False)
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "not_member"


async def test_everything_is_there_after_a_restart(settings: EngineSettings, clock: FakeClock) -> None:
    first = await RelayEngine.start(settings, clock)
    await closed_mesh(first)
    await first.administration.save_access(ALICE.node, AccessRow("lab", "*", lock=Verdict.DENY))
    await first.participation.create_topic(BOB.node, "lab", "news.today")
    await first.participation.subscribe(CAROL.node, "lab", "news.>")
    await first.participation.block(CAROL.node, "lab", BOB.node)
    before = first.administration.members(ALICE.node, "lab"), first.administration.access(ALICE.node, "lab")
    await first.close()
    second = await RelayEngine.start(settings, clock)
    after = second.administration.members(ALICE.node, "lab"), second.administration.access(ALICE.node, "lab")
    assert after == before
    assert second.participation.topics(BOB.node, "lab") == ["news.today"]
    assert second.participation.subscriptions(CAROL.node, "lab") == ["news.>"]
    assert second.participation.blocks(CAROL.node, "lab") == [BOB.node]
    await second.close()


async def test_main_that_must_not_be_open_is_closed_at_the_next_start(
    settings: EngineSettings, clock: FakeClock
) -> None:
    first = await RelayEngine.start(settings, clock)
    assert code(await first.accept(ALICE.raw())) == "201"
    await first.close()
    second = await RelayEngine.start(
        EngineSettings(settings.data_dir, settings.relay, is_main_open=False, admins=(BOB.node,)), clock
    )
    assert code(await second.accept(ALICE.raw())) == "not_member"
    assert code(await second.accept(BOB.raw())) == "201"
    assert {member.name for member in second.administration.members(BOB.node, "main")} == {"admin", "admin-2"}
    with refused("main_stays_closed"):
        await second.administration.set_open(BOB.node, "main", is_open=True)
    await second.close()


async def test_change_is_made_although_its_caller_is_cancelled(core: RelayEngine) -> None:
    going = asyncio.ensure_future(core.administration.create_mesh(ALICE.node, "lab"))
    await asyncio.sleep(0)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    await core.administration.create_mesh(ALICE.node, "other")  # changes run one at a time
    assert "lab" in core.meshes
    assert {row.mesh for row in (await core.store.mesh_rows()).meshes} == {"main", "lab", "other"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("alice", "member_name_taken"),
        ("Alice", "member_name_similar"),
        ("al1ce", "member_name_similar"),
        ("aIice", "member_name_similar"),
        ("deadbeef", "member_name_like_key"),
        (ALICE.node.removeprefix("ed25519:"), "member_name_like_key"),
        (ALICE.node.removeprefix("ed25519:")[:8], "member_name_like_key"),
    ],
)
async def test_name_that_could_be_mistaken_for_another_is_refused(core: RelayEngine, name: str, reason: str) -> None:
    await core.administration.create_mesh(ALICE.node, "lab", name="alice")
    with refused(reason):
        await core.administration.save_member(ALICE.node, "lab", BOB.node, name, Role.MEMBER)
    given = await core.invites.create(ALICE.node, "lab", uses=1, expires_s=60, role=Role.MEMBER)
    with refused(reason):
        await core.invites.redeem(BOB.node, given.code, name)
    assert (await core.invites.redeem(BOB.node, given.code, "bob")).name == "bob", "a refused name spends no use"


async def test_member_may_change_the_spelling_of_its_own_name(core: RelayEngine) -> None:
    await core.administration.create_mesh(ALICE.node, "lab", name="alice")
    await core.administration.save_member(ALICE.node, "lab", ALICE.node, "Alice", Role.ADMIN)
    with refused("member_name_similar"):
        await core.administration.save_member(ALICE.node, "lab", BOB.node, "alice", Role.MEMBER)


def save_unchecked(row: MemberRow, unit: Unit) -> None:
    unit.save_member(row)


async def test_members_whose_names_collide_since_before_keep_working(
    settings: EngineSettings, clock: FakeClock
) -> None:
    first = await RelayEngine.start(settings, clock)
    await first.administration.create_mesh(ALICE.node, "lab", name="alice")
    rows = [MemberRow("lab", BOB.node, "AL1CE", Role.MEMBER), MemberRow("lab", CAROL.node, "deadbeef", Role.MEMBER)]
    for row in rows:  # as an older relay accepted them
        await first.store.submit(partial(save_unchecked, row))
    await first.close()
    second = await RelayEngine.start(settings, clock)
    for author in (ALICE, BOB, CAROL):
        assert code(await second.accept(author.raw(1, ("mesh", "lab")))) == "201"
    await second.administration.save_member(ALICE.node, "lab", BOB.node, "AL1CE", Role.READER)
    await second.administration.save_member(ALICE.node, "lab", CAROL.node, "deadbeef", Role.ADMIN)
    await second.administration.remove_member(ALICE.node, "lab", BOB.node)
    with refused("member_name_similar"):
        await second.administration.save_member(ALICE.node, "lab", BOB.node, "AL1CE", Role.MEMBER)
    assert {row.name for row in second.administration.members(ALICE.node, "lab")} == {"alice", "deadbeef"}
    await second.close()
