"""Random filters, stored and live, against a naive filter over everything that was published."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from posthouse.model.event import decode_event
from posthouse.model.filters import filter_from_json
from tests.relay.edge import Author, Edge, Stream, running

ROUNDS = 60


def random_event(dice: random.Random, authors: list[Author]) -> dict[str, Any]:
    tags = [(dice.choice("tpx"), dice.choice("abc")) for _ in range(dice.randrange(4))]
    if dice.random() < 0.2:
        tags.append(("mesh", "team"))
    kind = dice.choice([1, 2, 7, 10_500, 30_500])
    if kind == 30_500:
        tags.append(("d", dice.choice("uv")))
    return dice.choice(authors).event(kind, str(dice.random()), tags)


def random_filter(dice: random.Random, authors: list[Author], events: list[dict[str, Any]]) -> dict[str, Any]:
    def chosen(values: list[Any]) -> list[Any]:
        return dice.sample(values, dice.randint(1, min(3, len(values))))

    wanted: dict[str, Any] = {}
    if dice.random() < 0.15:
        wanted["ids"] = chosen([event["id"] for event in events])
    if dice.random() < 0.4:
        wanted["authors"] = chosen([author.node for author in authors])
    if dice.random() < 0.4:
        wanted["kinds"] = chosen([1, 2, 7, 10_500, 30_500, 99])
    for tag in "tpxd":
        if dice.random() < 0.2:
            wanted[f"#{tag}"] = chosen(["a", "b", "c", "u", "nothing"])
    if dice.random() < 0.3:
        wanted["mesh"] = dice.choice(["main", "team"])
    if dice.random() < 0.2:
        wanted["since_ns"] = dice.choice(events)["created_at_ns"]
    if dice.random() < 0.2:
        wanted["until_ns"] = dice.choice(events)["created_at_ns"]
    return wanted


def naive(events: list[dict[str, Any]], filters: list[dict[str, Any]]) -> list[str]:
    wanted = [filter_from_json(each) for each in filters]
    return [
        event["id"]
        for event in events
        if any(each.matches(decode_event(json.dumps(event).encode())) for each in wanted)
    ]


async def read_stored(stream: Stream) -> dict[str, list[str]]:
    """Return the ids that each subscription got before its EOSE."""
    stored: dict[str, list[str]] = {f"s{number}": [] for number in range(ROUNDS)}
    for _ in range(ROUNDS):
        for command in await stream.until("EOSE"):
            if command[0] == "EVENT":
                stored[command[1]].append(command[2]["id"])
    return stored


async def read_live(stream: Stream, last: str) -> dict[str, list[str]]:
    """Return the ids that each subscription got until the sentinel event, which only one subscription matches."""
    pushed: dict[str, list[str]] = {sub: [] for sub in ("end", *(f"s{number}" for number in range(ROUNDS)))}
    while last not in pushed["end"]:
        sub, event, _ = await stream.expect("EVENT")
        pushed[sub].append(event["id"])
    return pushed


async def test_stored_and_live_answers_equal_a_naive_filter(tmp_path: Path) -> None:
    dice = random.Random(20)
    async with running(tmp_path / "relay") as edge:
        authors = [Author() for _ in range(4)]
        before, after, filters = await prepare(edge, dice, authors)
        async with edge.stream(authors[0]) as stream:
            for number, wanted in enumerate(filters):
                await stream.send("REQ", f"s{number}", {}, *wanted)
            stored = await read_stored(stream)
            await stream.send("REQ", "end", {"limit": 0}, {"kinds": [9_999]})
            await stream.expect("EOSE")
            sentinel = authors[0].event(9_999)
            for start in range(0, len(after), 25):
                await edge.publish(*after[start : start + 25])
            await edge.publish(sentinel)
            pushed = await read_live(stream, sentinel["id"])
        for number, wanted in enumerate(filters):
            assert stored[f"s{number}"] == naive(before, wanted), wanted
            assert [i for i in pushed[f"s{number}"] if i != sentinel["id"]] == naive(after, wanted), wanted
        assert sum(map(len, pushed.values())) > len(after)


async def prepare(
    edge: Edge, dice: random.Random, authors: list[Author]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[list[dict[str, Any]]]]:
    token = await edge.token(authors[0])
    await edge.post("/v1/meshes", {"name": "team", "open": True}, token)
    before = [random_event(dice, authors) for _ in range(300)]
    after = [random_event(dice, authors) for _ in range(200)]
    filters = [[random_filter(dice, authors, before + after) for _ in range(dice.randint(1, 3))] for _ in range(ROUNDS)]
    await edge.publish(*before)
    return before, after, filters
