"""The AsyncAPI document: it is the committed one, it is valid, and the frames of real streams are as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from posthouse.relay.asyncapi import FROM_CLIENT, FROM_RELAY, StreamCommand, describe_stream, stream_document
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.stream.commands import VERBS
from tests.relay.edge import Author, Edge, Stream, running
from tests.relay.messages.correspondents import Reading, direct, post, reading, send

ROOT = Path(__file__).parents[3]
DOCUMENT = describe_stream()
SPECIFICATION = ROOT / "clients/typescript/node_modules/@asyncapi/specs/schemas/3.0.0.json"


def test_committed_document_is_the_one_of_the_commands() -> None:
    assert (ROOT / "docs" / "asyncapi.json").read_bytes() == stream_document()


async def test_relay_serves_the_document_to_everybody(edge: Edge) -> None:
    reply = await edge.get("/asyncapi.json")
    assert (reply.status, reply.body) == (200, stream_document())


def test_document_is_valid_by_the_schema_of_asyncapi() -> None:
    if not SPECIFICATION.exists():
        pytest.skip("the schema of AsyncAPI is not installed: run scripts/setup with Node and a network")
    schema = json.loads(SPECIFICATION.read_text())
    jsonschema.Draft7Validator(schema).validate(DOCUMENT)
    broken = DOCUMENT | {"channels": {"stream": {"address": 1}}}
    assert not jsonschema.Draft7Validator(schema).is_valid(broken)


def test_document_has_every_verb_that_clients_may_send() -> None:
    assert sorted(each.verb for each in FROM_CLIENT) == sorted(VERBS)


class Frames:
    """The commands of all streams of a test, checked as they pass."""

    def __init__(self) -> None:
        self.verbs: set[tuple[str, str]] = set()

    def check(self, direction: str, commands: tuple[StreamCommand, ...], command: list[Any]) -> None:
        found = [each for each in commands if each.verb == command[0]]
        assert found, f"the document has no {command[0]} from the {direction}"
        payload = DOCUMENT["components"]["messages"][found[0].name]["payload"]
        schema = {"components": DOCUMENT["components"], **payload}
        plain = json.loads(json.dumps(command))
        jsonschema.Draft7Validator(schema).validate(plain)
        self.verbs.add((direction, command[0]))


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Iterator[Frames]:
    seen = Frames()
    send_one, receive = Stream.send, Stream.receive

    async def checked_send(stream: Stream, *parts: Any) -> None:
        if parts[0] != "WHAT":
            seen.check("client", FROM_CLIENT, list(parts))
        await send_one(stream, *parts)

    async def checked_receive(stream: Stream) -> list[Any]:
        command = await receive(stream)
        if command[0] != "END":
            seen.check("relay", FROM_RELAY, command)
        return command

    monkeypatch.setattr(Stream, "send", checked_send)
    monkeypatch.setattr(Stream, "receive", checked_receive)
    yield seen


async def test_frames_of_real_streams_are_as_the_document_says(tmp_path: Path, frames: Frames) -> None:
    alice, bob = Author(), Author()
    async with running(tmp_path / "relay", deliveries=DeliverySettings(queue_max=2)) as edge:
        await use_subscriptions(edge, alice)
        await use_locks(edge, alice, bob)
        await use_messages(edge, alice, bob)
        await use_gaps(edge, alice, bob)
    described = {("client", each.verb) for each in FROM_CLIENT} | {("relay", each.verb) for each in FROM_RELAY}
    assert described - frames.verbs == set()


async def use_subscriptions(edge: Edge, alice: Author) -> None:
    async with edge.stream(alice) as stream:
        for kind, content in ((1, "plain"), (10002, "{}"), (20003, "ephemeral"), (30001, "addressed")):
            await stream.send("EVENT", alice.event(kind, content, [("d", "x")]))
            assert (await stream.expect("OK"))[1] is True
        await stream.send("EVENT", alice.event(20001))
        assert (await stream.expect("OK"))[1] is False
        await stream.send("REQ", "s", {"limit": 10}, {"kinds": [1], "#d": ["x"], "since_ns": 0})
        await stream.until("EOSE")
        await stream.send("EVENT", alice.event(1, "live", [("d", "x")]))
        await stream.until("EVENT")
        await stream.send("REQ", "s", {}, {"authors": [alice.node]})
        await stream.until("CLOSED")
        await stream.send("CLOSE", "s")
        await stream.send("COUNT", "n", {"mesh": "main"}, {"ids": ["0" * 64]})
        await stream.until("COUNT")
        await stream.send("WHAT")
        assert await stream.notice() == "verb_unknown"


async def use_locks(edge: Edge, alice: Author, bob: Author) -> None:
    async with edge.stream(alice) as holder, edge.stream(bob) as other:
        asked = {"resource": "db", "lease_ms": 60_000, "session": "a", "tree": True, "also": ["x"]}
        await holder.send("LOCK", "1", "acquire", asked)
        token = (await holder.expect("LOCKED"))[1]["token"]
        held = {"resource": "db", "token": token, "session": "a", "also": ["x"]}
        await other.send("LOCK", "2", "acquire", {"resource": "db/y", "lease_ms": 60_000})
        assert (await other.expect("LOCKED"))[1]["code"] == "held"
        for operation in ("watch", "inspect", "unwatch"):
            await other.send("LOCK", "3", operation, {"resource": "db"})
            await other.expect("LOCKED")
        await other.send("LOCK", "4", "list", {})
        assert (await other.expect("LOCKED"))[1]["locks"]
        for number, operation in enumerate(("renew", "release")):
            await holder.send("LOCK", str(number), operation, held | ({"lease_ms": 60_000} if not number else {}))
            assert "code" not in (await holder.expect("LOCKED"))[1]


async def use_messages(edge: Edge, alice: Author, bob: Author) -> None:
    messages = [direct(alice, bob, body, None, ("from", "claude")) for body in ("one", "two", "three")]
    async with reading(edge, alice) as sender:
        for message in messages:
            await sender.stream.send("EVENT", message)
        assert [(await sender.next("OK"))[1] for _ in messages] == [True, True, False]
        await sender.next("QUEUE_FULL")
        async with reading(edge, bob, window=5, instance="b", agents=["codex"]) as reader:
            await sender.next("PRESENCE")
            await reader.stream.send("AGENTS", "main", ["codex", "claude"])
            await sender.next("PRESENCE")
            await reader.delivered(2)
            await reader.confirm(alice, messages[0]["id"])
            await sender.next("CONFIRMED")
            await reader.stream.send("REJECT", messages[1]["id"], "not for me")
            await reader.next("OK")
            receipt = bob.event(1002, "", [("p", alice.node), ("e", messages[0]["id"], "read", "1700000000000")])
            await reader.stream.send("EVENT", receipt)
            await sender.next("RECEIPT")
            profile = json.dumps({"status": "busy", "agents": [{"name": "codex", "program": "codex"}]})
            await reader.stream.send("EVENT", bob.event(10002, profile))
            await sender.next("PROFILE")


async def use_gaps(edge: Edge, alice: Author, bob: Author) -> None:
    await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))
    await edge.post("/v1/meshes/main/subscriptions", {"pattern": "news"}, await edge.token(bob))
    posts = [post(alice, "news", str(number)) for number in range(4)]
    await send(edge, *posts)
    async with reading(edge, bob) as reader:
        assert await waiting(reader) == 2
        await reader.delivered(2)
        await reader.confirm(alice, *[each["id"] for each in posts[:2]])
        _mesh, (gap,) = await reader.next("GAP")
        await reader.stream.send("FILLED", "main", gap["topic"], gap["last_seq"])


async def waiting(reader: Reading) -> int:
    return int((await reader.next("QUEUE_STATUS"))[0])
