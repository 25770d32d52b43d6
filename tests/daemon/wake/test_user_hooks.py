"""Hooks of the user: commands for events, at least once and in order, with a durable cursor and a scoped token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.housekeeping import prune_journal
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.settings import Retention
from posthouse.daemon.wake import parked_events, user_hooks
from posthouse.daemon.wake.user_hooks import LIFETIME_S, ScopedTokens, Source, UserHooks
from posthouse.journal.read import read_after
from posthouse.model.clock import FakeClock, SystemClock
from posthouse.model.errors import PosthouseError
from posthouse.model.user_hook import UserHook, parse_hooks
from tests.client.house import House
from tests.daemon.hosts import eventually, host_at, make_host, running
from tests.daemon.wake.programs import NOWHERE, SECRET, deliver, new_item

ANA = "ed25519:" + "aa" * 32
SQL_WITHOUT_CURSORS = "DELETE FROM hook_cursors WHERE mesh = 'main'"


@dataclass
class Home:
    """The stores of a home without a daemon."""

    inbox: Inbox
    agents: AgentRegistry
    tokens: ScopedTokens

    def sources(self) -> list[Source]:
        return [Source("main", "inbox", self.inbox.store), Source("", "home", self.agents.store)]

    @asynccontextmanager
    async def running(self, *hooks: UserHook) -> AsyncIterator[UserHooks]:
        """Run hooks, which have looked at their journals once, until the end of the block."""
        hooked = UserHooks(
            hooks, self.agents.store, self.sources, lambda node: "ana" if node == ANA else None, self.tokens
        )
        await hooked.prepare()
        task = asyncio.create_task(hooked.run())
        try:
            yield hooked
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def receive(self, running: UserHooks | None, count: int = 1, **fields: Any) -> list[str]:
        items = [new_item("claude", **fields) for _ in range(count)]
        await self.inbox.put(items)
        if running is not None:
            running.notify()
        return [item.id for item in items]

    async def runs(self) -> list[dict[str, Any]]:
        records = await self.agents.store.pool.run(lambda db: read_after(db, 0, 1000, {"hook.run"}))
        return [{"hook": record.ref, **record.decoded_body()} for record in records]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    inbox = Inbox(tmp_path / "inbox.db", "main", SystemClock())
    agents = AgentRegistry(tmp_path / "agents.db", SystemClock())
    yield Home(inbox, agents, ScopedTokens(SystemClock()))
    inbox.close()
    agents.close()


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def lines(path: Path) -> list[str]:
    return read_lines(path)


def recording(out: Path, name: str = "h", variable: str = "POSTHOUSE_REF", **fields: Any) -> UserHook:
    return UserHook(name, fields.pop("event", "received"), f"echo ${variable} >> {out}", **fields)


async def test_hook_runs_once_for_each_message_and_is_journalled(home: Home, tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with home.running(recording(out)) as running:
        ids = await home.receive(running, 3)
        await eventually(lambda: lines(out), lambda seen: sorted(seen) == ids)
        done = await eventually(home.runs, lambda seen: len(seen) == 3)
    assert {(run["hook"], run["exit"], run["attempt"]) for run in done} == {("h", 0, 1)}
    assert len({run["event_id"] for run in done}) == 3


async def test_command_gets_ids_and_names_and_no_text(home: Home, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hook = UserHook("h", "received", f"env | grep ^POSTHOUSE_ | sort > {out}.new; mv {out}.new {out}")
    async with home.running(hook) as running:
        running.url = "http://127.0.0.1:1"
        (item,) = await home.receive(running, sender=ANA, topic="build")
        told = dict(line.split("=", 1) for line in await eventually(lambda: lines(out), bool))
    assert told["POSTHOUSE_EVENT"] == "received"
    assert told["POSTHOUSE_REF"] == item
    assert (told["POSTHOUSE_FROM"], told["POSTHOUSE_TOPIC"], told["POSTHOUSE_AGENT"]) == ("ana", "build", "claude")
    assert told["POSTHOUSE_URL"] == "http://127.0.0.1:1"
    assert told["POSTHOUSE_EVENT_ID"] and told["POSTHOUSE_TOKEN"]
    assert SECRET not in str(told)


async def test_events_while_the_hook_was_down_are_not_skipped(home: Home, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hook = recording(out)
    before = await home.receive(None)  # older than the hook
    async with home.running(hook):
        pass
    missed = await home.receive(None, 20)
    async with home.running(hook):
        await eventually(lambda: lines(out), lambda seen: sorted(seen) == missed)
    assert before[0] not in await lines(out)


async def test_event_is_repeated_with_its_id_if_the_daemon_died_before_the_cursor_moved(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    hook = recording(out, variable="POSTHOUSE_EVENT_ID")
    async with home.running(hook):
        pass
    await home.receive(None)
    with monkeypatch.context() as dying:

        async def die(*_given: object) -> None:
            raise asyncio.CancelledError

        dying.setattr(UserHooks, "_move", die)
        async with home.running(hook):
            await eventually(lambda: lines(out), bool)
    async with home.running(hook):
        first, second = await eventually(lambda: lines(out), lambda seen: len(seen) == 2)
    assert first == second


async def test_event_of_a_failing_command_is_parked_and_the_next_event_follows(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_hooks, "_RETRY_S", (0.01, 0.01))
    out = tmp_path / "out"
    hook = UserHook("h", "received", f"echo $POSTHOUSE_REF >> {out}; exit 7")
    async with home.running(hook) as running:
        (first,) = await home.receive(running)
        await eventually(lambda: lines(out), lambda seen: seen == [first] * 3)
        (second,) = await home.receive(running)
        await eventually(lambda: lines(out), lambda seen: seen == [first] * 3 + [second] * 3)
        parked = await eventually(running.parked.list, lambda seen: len(seen) == 2)
        done = await home.runs()
    assert [(run["attempt"], run["exit"]) for run in done] == [(1, 7), (2, 7), (3, 7)] * 2
    assert [(each.ref, each.attempts, each.last_exit) for each in parked] == [(first, 3, 7), (second, 3, 7)]


async def test_parked_event_is_tried_again_over_restarts_until_its_command_succeeds(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_hooks, "_RETRY_S", (0.01, 0.01))
    out, gate = tmp_path / "out", tmp_path / "gate"
    hook = UserHook(
        "h", "received", f"test -e {gate} && env | grep ^POSTHOUSE_ | sort > {out}.new && mv {out}.new {out}"
    )
    async with home.running(hook) as running:
        (item,) = await home.receive(running, sender=ANA, topic="build")
        await eventually(running.parked.list, bool)
        await eventually(lambda: _position(home, running, hook), lambda seq: seq == home.inbox.store.extent().head)
    gate.touch()
    async with home.running(hook) as running:
        assert running.parked.total == 1
        await running.parked.retry("h")
        told = dict(line.split("=", 1) for line in await eventually(lambda: lines(out), bool))
        await eventually(running.parked.list, lambda seen: not seen)
    assert (told["POSTHOUSE_REF"], told["POSTHOUSE_FROM"], told["POSTHOUSE_TOPIC"]) == (item, "ana", "build")
    assert told["POSTHOUSE_TOKEN"]
    assert [run["attempt"] for run in await home.runs()] == [1, 2, 3, 4]


async def test_event_that_was_parked_before_the_cursor_moved_is_not_run_beside_it(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_hooks, "_RETRY_S", (0.01, 0.01))
    out = tmp_path / "out"
    hook = UserHook("h", "received", f"echo $POSTHOUSE_REF >> {out}; exit 1")
    async with home.running(hook):
        pass
    await home.receive(None)
    with monkeypatch.context() as dying:

        async def die(*_given: object) -> None:
            raise asyncio.CancelledError

        dying.setattr(UserHooks, "_move", die)
        async with home.running(hook) as running:
            await eventually(running.parked.list, bool)
    async with home.running(hook) as running:
        await eventually(lambda: _position(home, running, hook), lambda seq: seq == home.inbox.store.extent().head)
    assert len(await lines(out)) == 3


async def test_hook_without_room_for_parked_events_stays_with_its_event(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_hooks, "_RETRY_S", (0.01, 0.01))
    monkeypatch.setattr(parked_events, "RETRY_FIRST_S", 0)
    monkeypatch.setattr(parked_events, "PARKED_MAX", 1)
    out, gate = tmp_path / "out", tmp_path / "gate"
    hook = UserHook("h", "received", f"test -e {gate} && echo $POSTHOUSE_REF >> {out}")
    async with home.running(hook) as running:
        (first,) = await home.receive(running)
        await eventually(running.parked.list, bool)
        (second,) = await home.receive(running)
        await eventually(home.runs, lambda seen: len({run["event_id"] for run in seen}) == 2 and len(seen) > 10)
        gate.touch()
        await eventually(lambda: lines(out), lambda seen: sorted(seen) == [first, second])


async def test_parked_events_end_with_their_hook_or_by_the_will_of_a_person(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_hooks, "_RETRY_S", (0.01, 0.01))
    hooks = [UserHook(name, "received", "exit 1") for name in ("kept", "dropped", "gone")]
    async with home.running(*hooks) as running:
        await home.receive(running)
        await eventually(running.parked.list, lambda seen: len(seen) == 3)
        assert await running.parked.drop("dropped") == 1
    async with home.running(*hooks[:2]) as running:
        assert [each.hook for each in await running.parked.list()] == ["kept"]
    records = await home.agents.store.pool.run(lambda db: read_after(db, 0, 1000, {"hook.dropped"}))
    assert [record.ref for record in records] == ["dropped"]


async def test_command_is_ended_after_its_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_hooks, "ATTEMPTS", 1)
    async with home.running(UserHook("h", "received", "exec sleep 600", timeout_s=0.2)) as running:
        await home.receive(running)
        (run,) = await eventually(home.runs, bool)
    assert (run["timeout"], run["exit"]) == (True, -15)


@pytest.mark.parametrize(
    ("match", "is_for"),
    [
        ({}, True),
        ({"agent": "claude"}, True),
        ({"agent": "codex"}, False),
        ({"topic": "bu*"}, True),
        ({"from": "ana", "mesh": "main"}, True),
        ({"from": ANA}, True),
        ({"from": "bob"}, False),
    ],
)
async def test_hook_runs_for_what_it_matches(home: Home, tmp_path: Path, match: dict[str, str], is_for: bool) -> None:
    out = tmp_path / "out"
    (hook,) = parse_hooks([{"name": "h", "event": "received", "command": f"echo x >> {out}", "match": match}])
    last = recording(tmp_path / "last", "last")
    async with home.running(hook, last) as running:
        await home.receive(running, sender=ANA, topic="build")
        await eventually(lambda: lines(tmp_path / "last"), bool)
        if is_for:
            await eventually(lambda: lines(out), bool)
        else:
            await eventually(lambda: _position(home, running, hook), lambda seq: seq == home.inbox.store.extent().head)
            assert await lines(out) == []


async def _position(home: Home, running: UserHooks, hook: UserHook) -> int:
    return await running._position(hook, home.sources()[0])


async def test_at_most_eight_commands_run_at_once(home: Home, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    hooks = [
        UserHook(f"h{number}", "received", f"touch {tmp_path}/s$$; while [ ! -e {gate} ]; do sleep 0.05; done")
        for number in range(3)
    ]
    async with home.running(*hooks) as running:
        await home.receive(running, 6)
        await eventually(lambda: _started(tmp_path), lambda seen: seen == 8)
        gate.touch()
        await eventually(lambda: _started(tmp_path), lambda seen: seen == 18)


async def _started(folder: Path) -> int:
    return len(await asyncio.to_thread(lambda: list(folder.glob("s[0-9]*"))))


async def test_records_that_a_hook_needs_are_kept_from_pruning(home: Home, tmp_path: Path) -> None:
    hook = recording(tmp_path / "out")
    async with home.running(hook) as running:
        assert await running.kept_after(home.inbox.store) == 0
    await home.receive(None, 3)
    idle = UserHooks([hook], home.agents.store, home.sources, lambda _node: None, home.tokens)
    assert await idle.kept_after(home.inbox.store) == 0
    without = UserHooks([], home.agents.store, home.sources, lambda _node: None, home.tokens)
    assert await without.kept_after(home.inbox.store) is None


async def test_housekeeping_prunes_up_to_the_cursor_of_a_hook_and_no_further(home: Home, tmp_path: Path) -> None:
    hook = recording(tmp_path / "out")
    await home.receive(None, 600)
    idle = UserHooks([hook], home.agents.store, home.sources, lambda _node: None, home.tokens)
    await idle.prepare()
    await home.receive(None, 600)
    kept = await idle.kept_after(home.inbox.store)
    smallest = Retention(keep_days=0, max_bytes=1)
    assert await prune_journal(home.inbox.store, smallest, lambda _tx: {}, kept) == kept == 600
    async with home.running(hook):
        await eventually(lambda: _position(home, idle, hook), lambda seq: seq > 608)  # the first ones have run
    assert len(await lines(tmp_path / "out")) >= 8


# settings


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([{"name": "h", "event": "eaten", "command": "x"}], "eaten"),
        ([{"name": "h", "event": "dead"}], "command"),
        ([{"event": "dead", "command": "x"}], "name"),
        ([{"name": "h", "event": "dead", "command": "x", "when": 1}], "when"),
        ([{"name": "h", "event": "dead", "command": "x", "timeout_s": 0}], "timeout_s"),
        ([{"name": "h", "event": "dead", "command": "x", "match": {"colour": "red"}}], "colour"),
        ([{"name": "h", "event": "dead", "command": "x"}] * 2, "two hooks"),
        ({"name": "h"}, "array"),
    ],
)
def test_wrong_hooks_are_refused_with_the_reason(given: Any, reason: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        parse_hooks(given)
    assert refused.value.code == "setting_invalid"
    assert reason in str(refused.value)


# tokens


def test_token_opens_its_event_for_five_minutes() -> None:
    clock = FakeClock()
    tokens = ScopedTokens(clock)
    with tokens.issue("item-1") as token:
        scope = tokens.find(token)
        assert scope is not None
        scope.check("GET", "/v1/inbox/{id}", "item-1")
        scope.check("POST", "/v1/send", None)
        for request in (
            ("GET", "/v1/inbox/{id}", "item-2"),
            ("GET", "/v1/inbox", None),
            ("POST", "/v1/agents/on-mail", None),
        ):
            with pytest.raises(PosthouseError) as refused:
                scope.check(*request)
            assert refused.value.code == "token_scope_exceeded"
        clock.advance(LIFETIME_S - 1)
        assert tokens.find(token) is not None
        clock.advance(2)
        assert tokens.find(token) is None
    with tokens.issue(None) as token:
        pass
    assert tokens.find(token) is None


# in a daemon


async def test_hooks_of_a_daemon_hear_of_mail_confirmations_and_connections(house: House, tmp_path: Path) -> None:
    hooks = tuple(
        UserHook(event, event, f"echo $POSTHOUSE_MESH >> {tmp_path}/{event}")
        for event in ("received", "confirmed", "connected", "lost")
    )
    async with host_at(house, "alice", hooks=hooks) as alice, host_at(house, "bob") as bob:
        await eventually(lambda: lines(tmp_path / "connected"), lambda seen: seen == ["main"])
        await alice.send(bob.node, "hello")
        await bob.until_bodies(1)
        await eventually(lambda: lines(tmp_path / "confirmed"), lambda seen: seen == ["main"])
        await bob.send(alice.node, "hello back")
        await eventually(lambda: lines(tmp_path / "received"), lambda seen: seen == ["main"])
        await house.down()
        await eventually(lambda: lines(tmp_path / "lost"), lambda seen: seen == ["main"])


async def test_hook_hears_of_the_first_mail_of_a_mesh_that_is_added_later(house: House, tmp_path: Path) -> None:
    hook = UserHook("h", "received", f"echo $POSTHOUSE_REF >> {tmp_path}/received")
    async with host_at(house, "alice", hooks=(hook,)) as alice:
        node = alice.mesh
        await alice.daemon.meshes.remove("main")
        cursors = SQL_WITHOUT_CURSORS
        await alice.daemon.agents.store.writer.run(lambda tx: tx.db.execute(cursors).fetchall())
        opened = node.on_open

        async def open_with_mail(given: MeshNode) -> None:
            await opened(given)
            await given.inbox.put([new_item("")])

        alice.daemon.meshes.on_open = open_with_mail
        await alice.daemon.meshes._open(node.settings)
        await eventually(lambda: lines(tmp_path / "received"), lambda seen: len(seen) == 1)


async def test_failing_hooks_are_seen_retried_and_dropped_over_the_local_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_hooks, "_RETRY_S", (0.01, 0.01))
    host = make_host(tmp_path, NOWHERE, hooks=(UserHook("h", "received", "exit 3"),))
    async with running(host):
        item = await deliver(host, "")
        parked = await eventually(lambda: host.get("/v1/event-hooks"), lambda said: bool(said["parked"]))
        assert parked["items"] == [{"name": "h", "event": "received", "parked": 1}]
        (event,) = parked["parked"]
        assert (event["ref"], event["attempts"], event["last_exit"]) == (item, 3, 3)
        assert (await host.get("/v1/health"))["parked_events"] == 1
        assert (await host.post("/v1/event-hooks/parked", hook="h", action="retry"))["count"] == 1
        await eventually(lambda: host.get("/v1/event-hooks"), lambda said: said["parked"][0]["attempts"] == 4)
        assert (await host.post("/v1/event-hooks/parked", hook="x", action="drop")).status == 400
        assert (await host.post("/v1/event-hooks/parked", hook="h", action="drop"))["count"] == 1
        assert (await host.get("/v1/health"))["parked_events"] == 0


async def test_token_of_a_hook_reads_its_message_and_no_other(tmp_path: Path) -> None:
    out = tmp_path / "out"
    call = 'curl -s -o /dev/null -w "%{http_code}\\n" -H "Authorization: Bearer $POSTHOUSE_TOKEN" $POSTHOUSE_URL'
    paths = ("/v1/inbox/$POSTHOUSE_REF?agent=claude", "/v1/inbox/$OTHER?agent=claude", "/v1/outbox", "/v1/version")
    script = "; ".join(f"{call}'{path}'".replace("'", '"') for path in paths)
    hook = UserHook("h", "received", f"OTHER=00; ( {script} ) > {out}.new; mv {out}.new {out}")
    host = make_host(tmp_path, NOWHERE, tcp="on", hooks=(hook,))
    async with running(host):
        await host.add_agent("claude")
        await deliver(host, "claude")
        assert await eventually(lambda: lines(out), bool) == ["200", "403", "403", "200"]
