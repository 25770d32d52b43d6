"""Quotas per creating key: one key cannot use up the meshes or topics of all, and admins are never shut out."""

from __future__ import annotations

import pytest

from posthouse.model.node import Role
from posthouse.relay.engine import RelayEngine
from posthouse.relay.meshes import administration, participation
from tests.relay.authors import ALICE, BOB, CAROL
from tests.relay.meshes.conftest import ADMIN
from tests.relay.meshes.refusal import refused


async def test_key_creates_meshes_up_to_its_quota_and_others_go_on(
    core: RelayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "MAX_MESHES_PER_KEY", 3)
    for number in range(3):
        await core.administration.create_mesh(ALICE.node, f"lab-{number}")
    with refused("quota_reached"):
        await core.administration.create_mesh(ALICE.node, "lab-3")
    await core.administration.create_mesh(BOB.node, "lab-3")


async def test_admin_of_the_relay_creates_a_mesh_when_others_have_used_up_all(
    core: RelayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "MAX_MESHES", 3)  # main is one of them
    await core.administration.create_mesh(ALICE.node, "one")
    await core.administration.create_mesh(BOB.node, "two")
    with refused("mesh_limit"):
        await core.administration.create_mesh(CAROL.node, "three")
    await core.administration.create_mesh(ADMIN.node, "three")


async def test_key_creates_topics_up_to_its_quota_and_admins_beyond_every_limit(
    core: RelayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participation, "MAX_TOPICS_PER_KEY", 2)
    monkeypatch.setattr(participation, "MAX_TOPICS", 4)
    await core.administration.create_mesh(ALICE.node, "lab", is_open=True, name="alice")
    for author in (BOB, CAROL):
        for number in range(2):
            await core.participation.create_topic(author.node, "lab", f"{author.node[-4:]}.t{number}")
    with refused("quota_reached"):
        await core.participation.create_topic(BOB.node, "lab", "more")
    await core.participation.remove_topic(BOB.node, "lab", f"{BOB.node[-4:]}.t0")
    await core.participation.create_topic(BOB.node, "lab", "instead")
    await core.administration.save_member(ALICE.node, "lab", CAROL.node, "carol", Role.READER)
    for admin in (ALICE, ADMIN):  # of the mesh, of the relay
        await core.participation.create_topic(admin.node, "lab", f"admin.{admin.node[-4:]}")
