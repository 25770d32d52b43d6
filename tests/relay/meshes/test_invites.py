from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.node import Role
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.meshes.invites import Invite
from posthouse.relay.ops.maintenance import backup_relay, restore_relay
from posthouse.relay.wire.mesh_rows import MemberRow
from tests.relay.accept.answers import code
from tests.relay.authors import ALICE, BOB, CAROL, Author
from tests.relay.meshes.refusal import refused


async def invite(core: RelayEngine, *, uses: int = 1, expires_s: int = 60, role: Role = Role.MEMBER) -> Invite:
    if "lab" not in core.meshes:
        await core.administration.create_mesh(ALICE.node, "lab", name="alice")
    return await core.invites.create(ALICE.node, "lab", uses=uses, expires_s=expires_s, role=role)


async def test_invite_makes_a_member_that_may_publish(core: RelayEngine) -> None:
    given = await invite(core)
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "not_member"
    row = await core.invites.redeem(BOB.node, given.code, "bob")
    assert row == MemberRow("lab", BOB.node, "bob", Role.MEMBER)
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "201"


async def test_invite_works_once(core: RelayEngine) -> None:
    given = await invite(core)
    await core.invites.redeem(BOB.node, given.code, "bob")
    with refused("invite_invalid"):
        await core.invites.redeem(CAROL.node, given.code, "carol")
    assert code(await core.accept(CAROL.raw(1, ("mesh", "lab")))) == "not_member"


async def test_two_nodes_that_use_one_invite_at_once_do_not_both_join(core: RelayEngine) -> None:
    given = await invite(core, uses=3)
    authors = [Author(number) for number in range(200, 210)]
    tries = [core.invites.redeem(who.node, given.code, f"n{number}") for number, who in enumerate(authors)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(answer, MemberRow) for answer in answers) == 3
    assert len(core.administration.members(ALICE.node, "lab")) == 4


async def test_retry_of_a_join_gets_the_same_answer_and_takes_no_further_use(core: RelayEngine) -> None:
    given = await invite(core, uses=2)
    first = await core.invites.redeem(BOB.node, given.code, "bob")
    assert await core.invites.redeem(BOB.node, given.code, "bob") == first
    await core.invites.redeem(CAROL.node, given.code, "carol")


async def test_member_that_was_removed_cannot_use_its_invite_again(core: RelayEngine) -> None:
    given = await invite(core, uses=5)
    await core.invites.redeem(BOB.node, given.code, "bob")
    await core.administration.remove_member(ALICE.node, "lab", BOB.node)
    with refused("invite_invalid"):
        await core.invites.redeem(BOB.node, given.code, "bob")


async def test_invite_expires(core: RelayEngine, clock: FakeClock) -> None:
    given = await invite(core, expires_s=60)
    clock.advance(60)
    with refused("invite_invalid"):
        await core.invites.redeem(BOB.node, given.code, "bob")


async def test_refused_join_takes_no_use(core: RelayEngine) -> None:
    given = await invite(core)
    with refused("member_name_taken"):
        await core.invites.redeem(BOB.node, given.code, "alice")
    await core.invites.redeem(BOB.node, given.code, "bob")


async def test_invite_never_lowers_a_role(core: RelayEngine) -> None:
    given = await invite(core, role=Role.READER)
    row = await core.invites.redeem(ALICE.node, given.code, "alice")
    assert row.role is Role.ADMIN


async def test_only_admins_invite_within_bounds(core: RelayEngine) -> None:
    given = await invite(core)
    await core.invites.redeem(BOB.node, given.code, "bob")
    with refused("right_missing"):
        await core.invites.create(BOB.node, "lab", uses=1, expires_s=60, role=Role.ADMIN)
    for uses, expires_s in ((0, 60), (1, 0), (10**6, 60), (1, 10**10)):
        with refused("value_invalid"):
            await core.invites.create(ALICE.node, "lab", uses=uses, expires_s=expires_s, role=Role.MEMBER)


@pytest.mark.sqlite
async def test_code_is_nowhere_in_the_store_or_the_journal(core: RelayEngine, settings: EngineSettings) -> None:
    given = await invite(core)
    records = await core.store.journal(0, 100, ["mesh.invited"])
    assert [record.ref for record in records] == [given.invite_id]
    content = await asyncio.to_thread(_bytes_of, settings.data_dir)
    assert given.invite_id.encode() in content
    assert given.code.encode() not in content


async def test_code_is_invalid_under_another_relay_key(settings: EngineSettings, clock: FakeClock) -> None:
    first = await RelayEngine.start(settings, clock)
    given = await invite(first)
    await first.close()
    other = await RelayEngine.start(EngineSettings(settings.data_dir, Author(97).node), clock)
    with refused("invite_invalid"):
        await other.invites.redeem(BOB.node, given.code, "bob")
    await other.close()


@pytest.mark.parametrize("guess", ["", "x", "\ud800", "é", "a" * 10_000])
async def test_guessed_code_is_refused(core: RelayEngine, guess: str) -> None:
    await invite(core)
    with refused("invite_invalid"):
        await core.invites.redeem(BOB.node, guess, "bob")


@pytest.mark.sqlite
async def test_invite_of_a_backup_is_void_after_it_was_restored(
    settings: EngineSettings, clock: FakeClock, tmp_path: Path
) -> None:
    first = await RelayEngine.start(settings, clock)
    given = await invite(first)
    await asyncio.to_thread(backup_relay, settings.data_dir / "relay.db", tmp_path / "backup.db")
    await first.invites.redeem(BOB.node, given.code, "bob")
    await first.close()
    await asyncio.to_thread(restore_relay, tmp_path / "backup.db", settings.data_dir / "relay.db", clock)
    second = await RelayEngine.start(settings, clock)
    with pytest.raises(PosthouseError, match="used up"):
        await second.invites.redeem(CAROL.node, given.code, "carol")
    await second.close()


def _bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


async def test_revoked_invite_makes_no_member_and_those_who_joined_stay(core: RelayEngine) -> None:
    given = await invite(core, uses=5)
    await core.invites.redeem(BOB.node, given.code, "bob")
    (listed,) = await core.invites.active(ALICE.node, "lab")
    assert (listed.invite_id, listed.uses_left, listed.creator) == (given.invite_id, 4, ALICE.node)
    await core.invites.revoke(ALICE.node, "lab", given.invite_id)
    with refused("invite_invalid"):
        await core.invites.redeem(CAROL.node, given.code, "carol")
    assert await core.invites.active(ALICE.node, "lab") == []
    assert (await core.invites.redeem(BOB.node, given.code, "bob")).name == "bob", "a lost answer is repeated"
    records = await core.store.journal(0, 100, ["mesh.invite_revoked"])
    assert [(each.ref, each.decoded_body()) for each in records] == [(given.invite_id, {"reason": "revoked"})]


async def test_only_admins_list_and_revoke_invites_and_only_usable_ones_are_listed(
    core: RelayEngine, clock: FakeClock
) -> None:
    given = await invite(core, expires_s=60)
    await core.administration.save_member(ALICE.node, "lab", BOB.node, "bob", Role.MEMBER)
    for actor, code_ in ((BOB.node, "right_missing"), (CAROL.node, "not_member")):
        with refused(code_):
            await core.invites.active(actor, "lab")
        with refused(code_):
            await core.invites.revoke(actor, "lab", given.invite_id)
    for mesh in ("lab", "main"):
        with refused("invite_unknown" if mesh == "lab" else "right_missing"):
            await core.invites.revoke(ALICE.node, mesh, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    clock.advance(61)
    assert await core.invites.active(ALICE.node, "lab") == []
    with refused("invite_unknown"):
        await core.invites.revoke(ALICE.node, "lab", given.invite_id)


@pytest.mark.parametrize("change", ["removed", "demoted"])
async def test_invites_end_with_the_admin_that_made_them(core: RelayEngine, change: str) -> None:
    kept = await invite(core)
    await core.administration.save_member(ALICE.node, "lab", BOB.node, "bob", Role.ADMIN)
    given = await core.invites.create(BOB.node, "lab", uses=1, expires_s=60, role=Role.ADMIN)
    if change == "removed":
        await core.administration.remove_member(ALICE.node, "lab", BOB.node)
    else:
        await core.administration.save_member(ALICE.node, "lab", BOB.node, "bob", Role.MEMBER)
    with refused("invite_invalid"):
        await core.invites.redeem(CAROL.node, given.code, "carol")
    assert [each.invite_id for each in await core.invites.active(ALICE.node, "lab")] == [kept.invite_id]
    await core.administration.save_member(ALICE.node, "lab", BOB.node, "bob", Role.ADMIN)
    with refused("invite_invalid"):  # an admin who returns does not bring old invites back
        await core.invites.redeem(CAROL.node, given.code, "carol")


async def test_number_of_usable_invites_of_a_mesh_is_bounded(
    core: RelayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.relay.meshes.invites.MAX_INVITES", 2)
    first = await invite(core)
    await invite(core)
    with refused("mesh_row_limit"):
        await invite(core)
    await core.invites.revoke(ALICE.node, "lab", first.invite_id)
    await invite(core)
