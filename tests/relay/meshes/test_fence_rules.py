"""A mesh rule demands the fence of a resource for certain events; unfenced writes are refused, stored ones stay."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.fence_rules import FenceRule, missing_fence
from posthouse.model.lease import FenceTag
from posthouse.model.lock_api import LockGrant
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.meshes import fence_rules
from posthouse.relay.ops.maintenance import check_relay
from posthouse.relay.store.sqlite.store import FILE_NAME
from posthouse.relay.wire.accept_results import Answer, Declined
from posthouse.relay.wire.lock_operations import Acquire
from tests.relay.accept.answers import code
from tests.relay.authors import ALICE, BOB, Author
from tests.relay.meshes.conftest import ADMIN
from tests.relay.meshes.refusal import refused


async def granted(core: RelayEngine, author: Author, resource: str) -> str:
    answer = await core.locks.ask(author.node, Acquire(resource, 60_000))
    assert isinstance(answer, LockGrant), answer
    return str(answer.token)


async def write(core: RelayEngine, author: Author, d: str, *fence: str, kind: int = 30_000) -> Answer:
    tags = [("d", d)] + ([("fence", *fence)] if fence else [])
    return await core.accept(author.raw(kind, *tags))


async def test_rule_refuses_writes_without_the_fence_it_names(core: RelayEngine) -> None:
    await core.fence_rules.save(ADMIN.node, "main", FenceRule(30_000, "release/", "deploy"))
    refusal = await write(core, ALICE, "release/1")
    assert isinstance(refusal, Declined)
    assert (refusal.status, refusal.error.code, refusal.error.fields["resource"]) == (409, "fence_required", "deploy")
    assert code(await write(core, ALICE, "other")) == "201"
    assert code(await write(core, ALICE, "release/1", kind=30_001)) == "201"
    token = await granted(core, ALICE, "deploy")
    assert code(await write(core, ALICE, "release/1", "deploy", token)) == "201"
    assert code(await write(core, BOB, "release/1", "deploy", token)) == "fence_unknown"
    other = await granted(core, ALICE, "test")
    assert code(await write(core, ALICE, "release/1", "test", other)) == "fence_required"


async def test_placeholder_of_a_rule_stands_for_the_d_of_the_event(core: RelayEngine) -> None:
    await core.fence_rules.save(ADMIN.node, "main", FenceRule(30_000, "", "builds/{d}"))
    token = await granted(core, ALICE, "builds/linux")
    assert code(await write(core, ALICE, "linux", "builds/linux", token)) == "201"
    assert code(await write(core, ALICE, "mac", "builds/linux", token)) == "fence_required"


async def test_event_that_was_stored_before_the_rule_gets_its_first_answer(core: RelayEngine) -> None:
    event = ALICE.raw(30_000, ("d", "x"))
    assert code(await core.accept(event)) == "201"
    await core.fence_rules.save(ADMIN.node, "main", FenceRule(30_000, "", "db"))
    assert code(await core.accept(event)) == "200"


async def test_rule_of_one_mesh_leaves_others_alone_and_can_be_removed(core: RelayEngine) -> None:
    await core.administration.create_mesh(ALICE.node, "lab")
    await core.fence_rules.save(ALICE.node, "lab", FenceRule(10_000, "", "db"))
    in_lab = ALICE.raw(10_000, ("mesh", "lab"))
    assert code(await core.accept(in_lab)) == "fence_required"
    assert code(await core.accept(ALICE.raw(10_000))) == "201"
    await core.fence_rules.remove(ALICE.node, "lab", 10_000, "")
    assert code(await core.accept(in_lab)) == "201"
    with refused("fence_rule_unknown"):
        await core.fence_rules.remove(ALICE.node, "lab", 10_000, "")


async def test_admins_change_rules_and_members_see_them(core: RelayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = FenceRule(30_000, "b", "db")
    with refused("right_missing"):
        await core.fence_rules.save(ALICE.node, "main", rule)
    await core.fence_rules.save(ADMIN.node, "main", rule)
    await core.fence_rules.save(ADMIN.node, "main", FenceRule(30_000, "a", "db"))
    assert [each.d_prefix for each in core.fence_rules.rules(ALICE.node, "main")] == ["a", "b"]
    with refused("right_missing"):
        await core.fence_rules.remove(ALICE.node, "main", 30_000, "b")
    monkeypatch.setattr(fence_rules, "MAX_RULES", 2)
    await core.fence_rules.save(ADMIN.node, "main", FenceRule(30_000, "a", "other"))
    with refused("mesh_row_limit"):
        await core.fence_rules.save(ADMIN.node, "main", FenceRule(30_000, "c", "db"))


@pytest.mark.parametrize(
    "rule",
    [
        FenceRule(1, "", "db"),
        FenceRule(20_000, "", "db"),
        FenceRule(10_000, "x", "db"),
        FenceRule(30_000, "", ""),
        FenceRule(30_000, "", "x" * 513),
        FenceRule(30_000, "x" * 513, "db"),
        FenceRule(30_000, "\ud800", "db"),
    ],
)
async def test_rule_that_no_event_could_follow_is_refused(core: RelayEngine, rule: FenceRule) -> None:
    with refused("fence_rule_invalid"):
        await core.fence_rules.save(ADMIN.node, "main", rule)


def test_longest_prefix_decides() -> None:
    rules = [FenceRule(30_000, "", "all"), FenceRule(30_000, "a/", "a"), FenceRule(30_000, "a/b", "b-{d}-{d}")]
    assert missing_fence(rules, 30_000, "x", None) == "all"
    assert missing_fence(rules, 30_000, "a/c", FenceTag("all", 1, False)) == "a"
    assert missing_fence(rules, 30_000, "a/bc", None) == "b-a/bc-a/bc"
    assert missing_fence(rules, 30_000, "a/bc", FenceTag("b-a/bc-a/bc", 1, False)) is None
    assert missing_fence(rules, 30_001, "a/c", None) is None


@pytest.mark.sqlite
async def test_rules_survive_a_restart_and_the_check_compares_them_with_the_journal(
    settings: EngineSettings, clock: FakeClock
) -> None:
    core = await RelayEngine.start(settings, clock)
    await core.fence_rules.save(ADMIN.node, "main", FenceRule(30_000, "a", "db"))
    await core.fence_rules.save(ADMIN.node, "main", FenceRule(30_000, "b", "db"))
    await core.fence_rules.remove(ADMIN.node, "main", 30_000, "b")
    await core.store.submit(lambda unit: unit.snapshot_journal(1))
    await core.close()
    path: Path = settings.data_dir / FILE_NAME
    assert list(check_relay(path)) == []
    core = await RelayEngine.start(settings, clock)
    assert core.fence_rules.rules(ALICE.node, "main") == [FenceRule(30_000, "a", "db")]
    assert code(await write(core, ALICE, "a")) == "fence_required"
    await core.close()
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM fence_rules")
    db.close()
    assert any("rule main" in finding for finding in check_relay(path))
