"""POST /v1/request byte for byte: the lines of its body, and the refusals before the first line; on each store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from posthouse.model.clock import format_utc, system_clock
from posthouse.model.strict_json import jcs
from tests.relay.edge import PATIENCE_S, Author, Edge

pytestmark = pytest.mark.usefixtures("each_store")
MINUTE_NS = 60_000_000_000


def request_event(author: Author, to: Author, ahead_ns: int = MINUTE_NS, mode: str = "now") -> dict[str, Any]:
    meta = jcs({"request": mode, "valid_until": format_utc(system_clock().wall_ns() + ahead_ns)})
    return author.event(1000, "are you there?", [("p", to.node), ("c", f"q-{ahead_ns}"), ("meta", meta)])


def answer_event(author: Author, to: Author, request_id: str, text: str, state: str | None = None) -> dict[str, Any]:
    meta = [] if state is None else [("meta", jcs({"answer": state}))]
    return author.event(1000, text, [("p", to.node), ("c", text), ("e", request_id), *meta])


async def lines(edge: Edge, event: dict[str, Any], token: str) -> list[Any]:
    """Return every line of a request's body."""
    reply = await edge.post("/v1/request", {"event": event}, token)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.body.splitlines() if line]


async def test_answers_are_streamed_as_lines_until_the_final_one(edge: Edge, author: Author) -> None:
    bob = Author()
    token, asked = await edge.token(author), request_event(author, bob)
    async with edge.stream(bob) as stream, asyncio.TaskGroup() as tasks:
        await stream.send("RECEIVE", "main", {})
        await stream.expect("ROSTER")
        reading = tasks.create_task(lines(edge, asked, token))
        delivered = (await stream.until("DELIVER"))[-1]
        assert delivered[2]["id"] == asked["id"]
        await edge.publish(
            answer_event(bob, author, asked["id"], "half", "partial"), answer_event(bob, author, asked["id"], "all")
        )
        accepted, partial, final = await asyncio.wait_for(reading, PATIENCE_S)
    assert (accepted["type"], accepted["id"], accepted["duplicate"]) == ("accepted", asked["id"], False)
    assert (partial["type"], partial["event"]["content"]) == ("partial", "half")
    assert (final["type"], final["event"]["content"]) == ("final", "all")
    assert final["event"]["seq"] > partial["event"]["seq"] > accepted["seq"]


async def test_the_same_request_again_gets_the_answers_that_are_stored(edge: Edge, author: Author) -> None:
    bob = Author()
    token, asked = await edge.token(author), request_event(author, bob, mode="queue")
    await edge.publish(asked, answer_event(bob, author, asked["id"], "done"))
    accepted, final = await lines(edge, asked, token)
    assert accepted["duplicate"] is True
    assert (final["type"], final["event"]["content"]) == ("final", "done")


async def test_a_request_without_an_answer_ends_with_expired(edge: Edge, author: Author) -> None:
    asked = request_event(author, Author(), ahead_ns=300_000_000, mode="queue")
    accepted, last = await lines(edge, asked, await edge.token(author))
    assert (accepted["type"], last) == ("accepted", {"type": "expired"})


async def test_a_new_request_to_a_node_without_a_connection_is_refused_and_not_stored(
    edge: Edge, author: Author
) -> None:
    token, asked = await edge.token(author), request_event(author, Author())
    reply = await edge.post("/v1/request", {"event": asked}, token)
    assert (reply.status, reply.code) == (503, "no_responder")
    assert (await edge.get(f"/v1/events/{asked['id']}", token)).code == "event_unknown"


@pytest.mark.parametrize("mistake", ["plain message", "another author", "far deadline", "not a message"])
async def test_what_is_no_request_of_the_caller_is_refused(edge: Edge, author: Author, mistake: str) -> None:
    token, bob = await edge.token(author), Author()
    event = {
        "plain message": author.event(1000, "hello", [("p", bob.node), ("c", "1")]),
        "another author": request_event(bob, author),
        "far deadline": request_event(author, bob, ahead_ns=62 * MINUTE_NS),
        "not a message": author.event(1, "hello"),
    }[mistake]
    reply = await edge.post("/v1/request", {"event": event}, token)
    assert reply.status == 400
    assert reply.code in ("request_malformed", "message_malformed")


async def test_a_request_after_its_deadline_is_refused(edge: Edge, author: Author) -> None:
    asked = request_event(author, Author(), ahead_ns=-MINUTE_NS)
    reply = await edge.post("/v1/request", {"event": asked}, await edge.token(author))
    assert (reply.status, reply.code) == (504, "request_timeout")


async def test_a_request_needs_a_token(edge: Edge, author: Author) -> None:
    reply = await edge.post("/v1/request", {"event": request_event(author, Author())})
    assert reply.code == "authentication_required"


async def test_a_relay_that_stops_ends_open_requests(edge: Edge, author: Author) -> None:
    asked = request_event(author, Author(), mode="queue")
    token = await edge.token(author)
    reading = asyncio.create_task(lines(edge, asked, token))
    requests = edge.server.context.engine.requests
    async with asyncio.timeout(PATIENCE_S):
        while not len(requests):  # noqa: ASYNC110 - there is no event to wait on
            await asyncio.sleep(0.005)
    edge.server.context.is_stopping = True
    assert (await reading)[-1] == {"type": "stopping"}
    edge.server.context.is_stopping = False


async def test_a_caller_with_too_many_open_requests_is_refused(
    edge: Edge, author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posthouse.relay.messages import open_requests

    monkeypatch.setattr(open_requests, "MAX_OPEN_PER_NODE", 0)
    asked = request_event(author, Author(), mode="queue")
    reply = await edge.post("/v1/request", {"event": asked}, await edge.token(author))
    assert (reply.status, reply.code) == (429, "open_requests_exceeded")
