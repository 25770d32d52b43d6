from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from posthouse import Bus
from posthouse.model.access_rules import AccessRule
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.mailboxes import hash_of
from tests.bus.waiting import DEADLINE_S


def rule(from_: str, to: str, action: str = "deny", priority: int = 0) -> AccessRule:
    import msgspec

    return msgspec.convert({"from": from_, "to": to, "action": action, "priority": priority}, AccessRule)


async def outcome(bus: Bus, subject: str, sender: str) -> list[str]:
    """The endpoints that refused, or nothing."""
    result = await bus.publish(subject, 1, from_=sender)
    assert {str(entry.reason) for entry in result.rejected} <= {"access_denied"}
    return sorted(entry.subject for entry in result.rejected)


async def test_denied_message_is_refused_and_becomes_a_dead_letter(house: House, bus: Bus) -> None:
    await bus.register_endpoint("secret.box")
    await bus.add_rule(rule("guest.>", "secret.>"))
    result = await bus.publish("secret.box", {"n": 1}, from_="guest.one")
    (entry,) = result.rejected
    assert (entry.endpoint_hash, entry.subject) == (hash_of("secret.box"), "secret.box")
    assert entry.text
    assert result.delivered_to == 0
    (letter,) = await bus.dead_letters("secret.box")
    assert letter.envelope is not None
    assert letter.envelope.payload == {"n": 1}
    assert house.mailbox("secret.box").depth == 0
    assert await outcome(bus, "secret.box", "member.one") == []


@pytest.mark.parametrize("pattern", ["secret.*", "*.box", ">", "secret.>", "*.*"])
async def test_wildcard_publish_cannot_get_round_a_deny(house: House, bus: Bus, pattern: str) -> None:
    for subject in ("secret.box", "open.box", "secret.other"):
        await bus.register_endpoint(subject)
    await bus.add_rule(rule("guest", "secret.box"))
    assert await outcome(bus, pattern, "guest") == ["secret.box"]
    assert house.mailbox("secret.box").new == []


async def test_rule_about_the_pattern_itself_does_not_open_the_endpoint(bus: Bus) -> None:
    await bus.register_endpoint("secret.box")
    await bus.add_rule(rule("guest", "secret.box", "deny", priority=1))
    await bus.add_rule(rule("guest", "secret.*", "allow", priority=0))
    assert await outcome(bus, "secret.*", "guest") == ["secret.box"]


async def test_access_to_a_pattern_endpoint_is_decided_by_the_subject_and_cannot_hide_a_deny(bus: Bus) -> None:
    await bus.register_endpoint("secret.>")
    await bus.add_rule(rule("guest", "secret.box"))
    result = await bus.publish("secret.box", 1, from_="guest")
    assert result.delivered_to == 0
    assert (await bus.publish("secret.other", 1, from_="guest")).delivered_to == 1


async def test_highest_priority_decides_and_deny_comes_first_at_equal_priority(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.add_rule(rule("c", "a.b", "allow", 5))
    await bus.add_rule(rule("c", "a.*", "deny", 5))
    assert await outcome(bus, "a.b", "c") == ["a.b"]
    await bus.add_rule(rule("*", "a.b", "allow", 6))
    assert await outcome(bus, "a.b", "c") == []
    await bus.add_rule(rule(">", ">", "deny", 7))
    assert await outcome(bus, "a.b", "c") == ["a.b"]


async def test_rules_are_listed_removed_and_survive_a_restart(house: House, bus: Bus) -> None:
    await bus.add_rule(rule("c", "a.b"))
    await bus.add_rule(rule("d", "a.b", "allow", 3))
    await bus.close()
    again = await house.bus()
    assert [(r.from_, r.to, str(r.action), r.priority) for r in await again.list_rules()] == [
        ("c", "a.b", "deny", 0),
        ("d", "a.b", "allow", 3),
    ]
    await again.remove_rule("c", "a.b")
    assert [r.from_ for r in await again.list_rules()] == ["d"]


async def test_rule_of_one_process_holds_in_the_other(house: House, bus: Bus) -> None:
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    assert (await agent.ask("publish", subject="a.b", payload=1, from_="c"))["delivered_to"] == 1
    await bus.add_rule(rule("c", "a.b"))
    await refused_within_a_second(agent, "a.b")


async def refused_within_a_second(agent: Any, subject: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 1
    while not (await agent.ask("publish", subject=subject, payload=1, from_="c"))["rejected"]:
        assert loop.time() < deadline


async def until_rejected(bus: Bus, subject: str, *, rejected: bool) -> Any:
    """Publish until the rules file took effect; hot-reload has a second."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while True:
        result = await bus.publish(subject, 1, from_=f"c{round(loop.time() * 1e6)}")
        if bool(result.rejected) == rejected:
            return result
        assert loop.time() < deadline, result
        await asyncio.sleep(0.01)


BROKEN = [
    "{not json",
    "",
    "{}",
    '[{"from": "a", "to": "b", "action": "maybe", "priority": 0}]',
    '[{"from": "a b", "to": "b", "action": "deny", "priority": 0}]',
    '[{"from": "a", "to": "b", "action": "deny"}]',
    '[{"from": "a", "to": "b", "action": "deny", "priority": "high"}]',
    '[{"from": "a", "to": "b", "action": "allow", "priority": 1, "extra": true}]',
    '[{"from": "a", "from": "b", "to": "b", "action": "allow", "priority": 1}]',
]


@pytest.mark.parametrize("text", BROKEN)
async def test_broken_rule_file_denies_everything_and_says_so_until_repaired(house: House, bus: Bus, text: str) -> None:
    await bus.register_endpoint("a.b")
    path = house.root / "access-rules.json"
    path.write_text(text)
    path.chmod(0o600)
    result = await until_rejected(bus, "a.b", rejected=True)
    (entry,) = result.rejected
    assert str(entry.reason) == "access_denied"
    assert "access-rules.json" in entry.text or "access rules" in entry.text
    with pytest.raises(PosthouseError) as raised:
        await bus.list_rules()
    assert raised.value.code == "access_rules_invalid"
    path.write_text("[]")
    assert (await until_rejected(bus, "a.b", rejected=False)).delivered_to == 1
    assert await bus.list_rules() == []


async def test_broken_rule_file_denies_from_the_first_publish_of_a_new_process(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    (house.root / "access-rules.json").write_text("[1]")
    agent = await house.agent()
    result = await agent.ask("publish", subject="a.b", payload=1, from_="c")
    assert [entry["reason"] for entry in result["rejected"]] == ["access_denied"]


async def test_unreadable_rule_file_denies_everything(house: House, bus: Bus) -> None:
    """A directory in its place cannot be read, for root neither."""
    await bus.register_endpoint("a.b")
    (house.root / "access-rules.json").mkdir()
    result = await until_rejected(bus, "a.b", rejected=True)
    assert str(result.rejected[0].reason) == "access_denied"
    (house.root / "access-rules.json").rmdir()
    await until_rejected(bus, "a.b", rejected=False)


async def test_symlinked_rule_file_is_not_followed(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    elsewhere = house.root.parent / "planted.json"
    elsewhere.write_text('[{"from": ">", "to": ">", "action": "allow", "priority": 9}]')
    (house.root / "access-rules.json").symlink_to(elsewhere)
    result = await until_rejected(bus, "a.b", rejected=True)
    assert str(result.rejected[0].reason) == "access_denied"


async def test_broken_rule_file_is_not_overwritten_by_a_new_rule(house: House, bus: Bus) -> None:
    path = house.root / "access-rules.json"
    path.write_text("[broken")
    with pytest.raises(PosthouseError) as refused:
        await bus.add_rule(rule("c", "a.b"))
    assert refused.value.code == "access_rules_invalid"
    assert path.read_text() == "[broken"


async def test_edited_rule_file_applies_without_a_restart(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await until_rejected(bus, "a.b", rejected=False)
    deny = [{"from": ">", "to": "a.b", "action": "deny", "priority": 1}]
    (house.root / "access-rules.json").write_text(json.dumps(deny))
    await until_rejected(bus, "a.b", rejected=True)
    (house.root / "access-rules.json").unlink()
    await until_rejected(bus, "a.b", rejected=False)


async def test_concurrent_rule_changes_lose_none(house: House) -> None:
    one, two = await house.bus(), await house.bus()
    await asyncio.gather(
        *(bus.add_rule(rule(f"{name}{n}", "a.b")) for n in range(10) for name, bus in (("one", one), ("two", two)))
    )
    assert len(await one.list_rules()) == 20
    leftovers = [path.name for path in house.root.iterdir() if "access-rules" in path.name and path.suffix == ".tmp"]
    assert leftovers == []


@pytest.mark.parametrize(
    ("from_", "to"),
    [("a b", "b"), ("a", ""), ("a", ">.b")],
)
async def test_bad_rule_is_refused_before_it_reaches_the_file(house: House, bus: Bus, from_: str, to: str) -> None:
    with pytest.raises(PosthouseError):
        await bus.add_rule(rule(from_, to))
    assert not (house.root / "access-rules.json").exists()
