"""Usage that Claude Code writes to its transcripts: counted once, and reported by the next message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from posthouse.daemon.wake.transcripts import Transcript
from posthouse.journal.read import read_after
from posthouse.sqlite.connection import open_reader
from tests.daemon.hosts import Host, make_host, running
from tests.daemon.wake.programs import NOWHERE, Start, hook, programs


def answer(id_: str, output: int, *, model: str = "claude-large", cached: int = 100, kind: str = "text") -> str:
    """Return a line of a transcript as Claude Code writes it for one content block."""
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
        "service_tier": "standard",
    }
    message = {"id": id_, "role": "assistant", "model": model, "content": [{"type": kind}], "usage": usage}
    return json.dumps({"type": "assistant", "requestId": f"r-{id_}", "message": message}) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "session.jsonl").write_text(answer("before", 1_000))
    return tmp_path / "session.jsonl"


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(lines)


def test_an_answer_counts_once_however_many_lines_it_has(path: Path) -> None:
    transcript = Transcript(str(path))
    append(path, answer("a", 2, kind="thinking"), answer("a", 30), answer("a", 40, kind="tool_use"), answer("b", 5))
    assert transcript.take() == {
        "model": "claude-large",
        "input_tokens": 246,
        "output_tokens": 45,
        "cached_tokens": 200,
    }
    assert transcript.take() is None
    append(path, answer("b", 9))  # the end of an answer of which a part was reported
    taken = transcript.take()
    assert taken is not None
    assert (taken["input_tokens"], taken["output_tokens"]) == (0, 4)


def test_other_lines_and_half_lines_are_no_usage_and_no_error(path: Path) -> None:
    transcript = Transcript(str(path))
    half = answer("c", 7)
    append(
        path, 'not JSON with "usage"\n', '{"type":"user","usage":1}\n', answer("x", 1, model="<synthetic>"), half[:90]
    )
    assert transcript.take() is None
    append(path, half[90:])
    assert (transcript.take() or {})["output_tokens"] == 7
    path.unlink()
    assert transcript.take() is None
    assert Transcript(str(path.parent)).take() is None


def test_a_message_reports_one_model_and_the_others_follow(path: Path) -> None:
    transcript = Transcript(str(path))
    append(path, answer("a", 2, model="small", cached=0), answer("b", 400))
    assert [(transcript.take() or {}).get("model") for _ in range(3)] == ["claude-large", "small", None]


def test_what_no_message_reported_is_counted_again(path: Path) -> None:
    transcript = Transcript(str(path))
    append(path, answer("a", 2))
    taken = transcript.take()
    assert taken is not None
    transcript.give_back(taken)
    append(path, answer("b", 3))
    assert (transcript.take() or {})["output_tokens"] == 5


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    made = make_host(tmp_path, NOWHERE, reports_usage=True)
    async with running(made):
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    with programs() as started:
        yield started


def usages(host: Host) -> list[tuple[object, object]]:
    """Return what the outbox recorded of each message: that it is local, and its output tokens."""
    db = open_reader(next(host.settings.directory.rglob("outbox.db")))
    try:
        bodies = [record.decoded_body() for record in read_after(db, 0, 1_000) if record.type == "outbox.queued"]
    finally:
        db.close()
    return [(body.get("local"), (body.get("usage") or {}).get("output_tokens")) for body in bodies]


async def test_a_message_of_an_agent_reports_what_its_program_wrote_down(host: Host, start: Start, path: Path) -> None:
    await hook(host, start(), "session-start", name="reader")
    await hook(host, start(), "session-start", name="writer", transcript_path=str(path))
    writer = host.acting_as("writer")
    append(path, answer("a", 30))
    first = await writer.send("reader", "one", client_message_id="m1")
    assert first.status == 202, first.body
    append(path, answer("b", 5))
    again = await writer.send("reader", "one", client_message_id="m1")
    assert again.body["message_id"] == first.body["message_id"]
    await writer.send("reader", "two", meta={"usage": {"model": "mine", "output_tokens": 1}})
    assert (await writer.send("no such agent", "lost")).status >= 400
    await writer.send("reader", "three")
    await writer.send("reader", "four")
    assert usages(host) == [(True, 30), (True, 1), (True, 5), (True, None)]
