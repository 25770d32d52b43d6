from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from posthouse import Bus
from posthouse.model.errors import PosthouseError
from tests.bus.agent import ChildError
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.mailboxes import hash_of


async def code_of(call: object) -> str:
    """The error code a call is refused with."""
    with pytest.raises(PosthouseError) as refused:
        await call  # type: ignore[misc]
    return refused.value.code


async def test_endpoint_is_named_by_the_hash_of_its_subject(house: House, bus: Bus) -> None:
    endpoint = await bus.register_endpoint("team.alpha")
    assert (endpoint.subject, endpoint.hash) == ("team.alpha", hash_of("team.alpha"))
    folder = house.root / "mailboxes" / endpoint.hash
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"tmp", "new", "cur", "failed"}
    described = json.loads((folder / "endpoint.json").read_text())
    assert described["subject"] == "team.alpha"
    assert "registeredAt" in described


async def test_endpoints_are_listed_and_found(bus: Bus) -> None:
    for subject in ("b.two", "a.one"):
        await bus.register_endpoint(subject)
    assert sorted(endpoint.subject for endpoint in await bus.list_endpoints()) == ["a.one", "b.two"]
    found = await bus.get_endpoint("a.one")
    assert found is not None
    assert found.subject == "a.one"
    assert await bus.get_endpoint("a.none") is None


@pytest.mark.parametrize("subject", ["", "a b", "a.*", "*", "a.*.>", "a.>.b", "a\n", "*.>"])
async def test_bad_endpoint_subject_is_refused_and_leaves_nothing(house: House, bus: Bus, subject: str) -> None:
    assert await code_of(bus.register_endpoint(subject)) == "subject_invalid"
    assert list((house.root / "mailboxes").iterdir()) == []


async def test_registering_again_as_the_same_owner_changes_nothing(bus: Bus) -> None:
    first = await bus.register_endpoint("a.b", owner="me")
    await bus.publish("a.b", 1, from_="c")
    again = await bus.register_endpoint("a.b", owner="me")
    assert (first.subject, first.registered_at) == (again.subject, again.registered_at)
    assert len(await bus.list_endpoints()) == 1
    assert len(await bus.read_inbox("a.b", 10)) == 1


async def test_second_owner_is_refused_also_after_a_restart(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b", owner="first")
    assert await code_of(bus.register_endpoint("a.b", owner="second")) == "endpoint_owned"
    await bus.close()
    again = await house.bus()
    assert await code_of(again.register_endpoint("a.b", owner="second")) == "endpoint_owned"
    assert (await again.register_endpoint("a.b", owner="first")).owner == "first"


async def test_second_owner_in_another_process_is_refused(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b", owner="first")
    agent = await house.agent()
    with pytest.raises(ChildError) as refused:
        await agent.ask("register", subject="a.b", owner="second")
    assert refused.value.code == "endpoint_owned"


async def test_one_of_two_racing_registrations_wins(house: House) -> None:
    agents = [await house.agent(), await house.agent()]
    for number in range(10):
        outcomes = await asyncio.gather(
            *(agent.ask("register", subject=f"race.n{number}", owner=f"o{i}") for i, agent in enumerate(agents)),
            return_exceptions=True,
        )
        lost = [outcome for outcome in outcomes if isinstance(outcome, ChildError)]
        assert [failure.code for failure in lost] == ["endpoint_owned"]


async def test_released_endpoint_is_free_for_another_owner(bus: Bus) -> None:
    await bus.register_endpoint("a.b", owner="first")
    await bus.unregister_endpoint("a.b")
    assert (await bus.register_endpoint("a.b", owner="second")).owner == "second"


async def test_unregister_with_unread_mail_needs_force(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    assert await code_of(bus.unregister_endpoint("a.b")) == "endpoint_has_mail"
    assert await bus.get_endpoint("a.b") is not None
    assert len(await bus.read_inbox("a.b", 10)) == 1
    await bus.unregister_endpoint("a.b", force=True)
    assert await bus.get_endpoint("a.b") is None
    assert (await bus.publish("a.b", 2, from_="c")).delivered_to == 0
    await bus.register_endpoint("a.b")
    assert await bus.read_inbox("a.b", 10) == []


async def test_unregister_removes_every_row_of_the_endpoint(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", Recorder(fails=True))
    await bus.publish("a.b", 1, from_="c")
    await bus.unregister_endpoint("a.b", force=True)
    assert [breaker.subject for breaker in await bus.breakers()] == []
    assert await bus.list_endpoints() == []


async def test_unregister_of_an_unknown_endpoint_says_so(bus: Bus) -> None:
    assert await code_of(bus.unregister_endpoint("no.one")) == "endpoint_unknown"


async def test_pattern_endpoint_takes_what_no_literal_endpoint_matches(house: House, bus: Bus) -> None:
    await bus.register_endpoint("agents.>")
    await bus.register_endpoint("agents.ann")
    await bus.publish("agents.ann", "to ann", from_="c")
    await bus.publish("agents.bob.inbox", "to bob", from_="c")
    assert [e.payload for e in await bus.read_inbox("agents.ann", 10)] == ["to ann"]
    (caught,) = await bus.read_inbox("agents.>", 10)
    assert (caught.subject, caught.payload) == ("agents.bob.inbox", "to bob")
    assert len(house.mailbox("agents.>").new) == 1
    assert (await bus.publish("agents", "too short", from_="c")).delivered_to == 0


async def test_longest_pattern_endpoint_wins(bus: Bus) -> None:
    for pattern in (">", "agents.>", "agents.bob.>"):
        await bus.register_endpoint(pattern)
    await bus.publish("agents.bob.x", 1, from_="c")
    await bus.publish("agents.eve", 2, from_="c")
    await bus.publish("other", 3, from_="c")
    assert [e.payload for e in await bus.read_inbox("agents.bob.>", 10)] == [1]
    assert [e.payload for e in await bus.read_inbox("agents.>", 10)] == [2]
    assert [e.payload for e in await bus.read_inbox(">", 10)] == [3]


async def test_pattern_endpoint_is_served_by_subscriptions_that_match_the_messages_subject(bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("agents.>")
    await bus.subscribe("agents.>", got)
    await bus.publish("agents.bob", 1, from_="c")
    await bus.publish("agents.eve.x", 2, from_="c")
    assert await got.wait(2) == [1, 2]
    assert [envelope.subject for envelope in got.envelopes] == ["agents.bob", "agents.eve.x"]


async def test_hash_collision_is_refused(house: House, bus: Bus) -> None:
    """Forty-eight bits cannot be brought to collide in a test: a foreign description of the mailbox stands for it."""
    await bus.register_endpoint("a.b")
    await bus.unregister_endpoint("a.b")
    folder = house.root / "mailboxes" / hash_of("a.c")
    folder.mkdir(mode=0o700)
    described = {"subject": "someone.else", "registeredAt": "2024-01-01T00:00:00.000Z"}
    (folder / "endpoint.json").write_text(json.dumps(described))
    (folder / "endpoint.json").chmod(0o600)
    assert await code_of(bus.register_endpoint("a.c")) == "endpoint_collision"
    assert json.loads((folder / "endpoint.json").read_text())["subject"] == "someone.else"


async def test_symlinked_mailbox_is_refused(house: House, bus: Bus) -> None:
    elsewhere = house.root.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (house.root / "mailboxes" / hash_of("a.b")).symlink_to(elsewhere)
    assert await code_of(bus.register_endpoint("a.b")) == "store_path_unsafe"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("box", ["new", "cur", "tmp", "failed"])
async def test_symlinked_directory_inside_a_mailbox_is_refused(house: House, bus: Bus, box: str) -> None:
    elsewhere = house.root.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder = house.root / "mailboxes" / hash_of("a.b")
    folder.mkdir(mode=0o700)
    (folder / box).symlink_to(elsewhere)
    assert await code_of(bus.register_endpoint("a.b")) == "store_path_unsafe"


async def test_symlinked_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PosthouseError) as refused:
        await Bus(tmp_path / "link").__aenter__()
    assert refused.value.code == "store_path_unsafe"


async def test_data_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    (root / "something").touch()
    root.chmod(0o755)
    with pytest.raises(PosthouseError) as refused:
        await Bus(root).__aenter__()
    assert refused.value.code == "file_not_private"


async def test_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    with pytest.raises(PosthouseError) as refused:
        await Bus(tmp_path / "file").__aenter__()
    assert refused.value.code == "store_path_unsafe"


async def test_directory_comes_from_the_environment_or_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_BUS_DIR", str(tmp_path / "named"))
    async with Bus() as bus:
        assert bus.path == tmp_path / "named"
    monkeypatch.delenv("POSTHOUSE_BUS_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    async with Bus() as bus:
        assert bus.path == tmp_path / "home" / ".posthouse" / "bus"


def test_importing_posthouse_loads_no_database_library() -> None:
    import subprocess

    code = "import sys, posthouse; sys.exit('apsw' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


async def test_mailbox_that_another_process_created_again_receives_messages_of_this_one(tmp_path: Path) -> None:
    async with Bus(tmp_path) as first, Bus(tmp_path) as second:
        await first.register_endpoint("team.alpha")
        assert (await second.publish("team.alpha", 1, from_="team.beta")).delivered_to == 1
        await first.unregister_endpoint("team.alpha", force=True)
        await first.register_endpoint("team.alpha")
        assert (await second.publish("team.alpha", 2, from_="team.beta")).delivered_to == 1
        assert [envelope.payload for envelope in await first.read_inbox("team.alpha")] == [2]
