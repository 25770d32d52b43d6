"""The table of unanswered commands, on a link that records what is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from posthouse.client.stream.connection import Link
from posthouse.client.stream.frames import LockAnswer, OkAnswer
from posthouse.client.stream.pending import Answer, Kind, Pending, PendingCommands
from posthouse.model.errors import PosthouseError, error
from tests.client.waiting import until

PROBLEM = {"code": "rate_limited", "retry_after_s": 0}


class RecordingLink:
    """Stands for a link: records commands, and lets a test play the relay."""

    origin = "http://relay"
    last_error: PosthouseError | None = None

    def __init__(self) -> None:
        self.is_up = True
        self.sent: list[bytes] = []
        self.frames = 0

    def join(self, handlers: dict[type, Callable[[Any], None]], **callbacks: Callable[..., None]) -> None:
        self._handlers = handlers
        self.on_up, self.on_lost, self.on_end = (callbacks[name] for name in ("on_up", "on_lost", "on_end"))

    def send(self, *commands: bytes) -> None:
        self.sent += commands
        self.frames += 1

    def ok(self, key: str, body: dict[str, Any] | None = None) -> None:
        self._handlers[OkAnswer](OkAnswer(key, True, body or {}))

    def refuse(self, key: str, problem: dict[str, Any] = PROBLEM) -> None:
        self._handlers[OkAnswer](OkAnswer(key, False, problem))

    def locked(self, key: str, body: dict[str, Any]) -> None:
        self._handlers[LockAnswer](LockAnswer(key, body))


class Entry(Pending):
    """Keeps its answers."""

    def __init__(self, kind: Kind, key: str) -> None:
        super().__init__(kind, key, f"{kind.name} {key}".encode())
        self.answers: list[Answer] = []

    def on_answer(self, answer: Answer) -> None:
        self.answers.append(answer)


@pytest.fixture
def link() -> RecordingLink:
    return RecordingLink()


@pytest.fixture
def commands(link: RecordingLink) -> PendingCommands:
    return PendingCommands(cast(Link, link))


def added(commands: PendingCommands, *entries: Entry) -> tuple[Entry, ...]:
    for entry in entries:
        commands.add(entry)
    return entries


def code(entry: Entry) -> str:
    (answer,) = entry.answers
    assert isinstance(answer, PosthouseError)
    return answer.code


def test_answer_reaches_its_command_once(link: RecordingLink, commands: PendingCommands) -> None:
    one, other = added(commands, Entry(Kind.EVENT, "a"), Entry(Kind.CONFIRM, "b"))
    link.ok("a", {"seq": 1})
    link.ok("a", {"seq": 2})
    assert (one.answers, other.answers) == ([{"seq": 1}], [])
    assert link.sent == [b"EVENT a", b"CONFIRM b"]


def test_new_connection_sends_everything_unanswered_in_the_order_added(
    link: RecordingLink, commands: PendingCommands
) -> None:
    added(commands, *(Entry(kind, kind.name) for kind in (Kind.EVENT, Kind.CONFIRM, Kind.REJECT, Kind.LOCK)))
    link.ok("CONFIRM")
    link.sent.clear()
    link.on_lost(None, "")
    link.on_up()
    assert link.sent == [b"EVENT EVENT", b"REJECT REJECT", b"LOCK LOCK"]


def test_lock_whose_caller_left_without_a_connection_is_not_sent_again(
    link: RecordingLink, commands: PendingCommands
) -> None:
    left, waiting = added(commands, Entry(Kind.LOCK, "l1"), Entry(Kind.LOCK, "l2"))
    link.on_lost(None, "")
    link.sent.clear()
    left.is_resent = False
    link.on_up()
    assert link.sent == [b"LOCK l2"]
    assert (code(left), waiting.answers) == ("relay_unreachable", [])


def test_batch_travels_in_one_frame_and_fails_with_its_connection(
    link: RecordingLink, commands: PendingCommands
) -> None:
    batch = [Entry(Kind.BATCH, "a"), Entry(Kind.BATCH, "b")]
    commands.add_batch(batch)
    assert (link.frames, len(link.sent)) == (1, 2)
    link.on_lost(None, "")
    link.on_up()
    assert [code(entry) for entry in batch] == ["relay_unreachable"] * 2
    assert len(link.sent) == 2


def test_batch_without_a_connection_fails_at_once(link: RecordingLink, commands: PendingCommands) -> None:
    link.is_up = False
    entry = Entry(Kind.BATCH, "a")
    commands.add_batch([entry])
    assert code(entry) == "relay_unreachable" and not link.sent


async def test_no_event_overtakes_a_refused_one(link: RecordingLink, commands: PendingCommands) -> None:
    added(commands, Entry(Kind.EVENT, "a"))
    link.refuse("a")
    added(commands, Entry(Kind.EVENT, "b"), Entry(Kind.CONFIRM, "c"))
    assert link.sent == [b"EVENT a", b"CONFIRM c"]
    await until(lambda: len(link.sent) == 4)
    assert link.sent[2:] == [b"EVENT a", b"EVENT b"]


@pytest.mark.parametrize("kind", [Kind.CONFIRM, Kind.REJECT])
async def test_refused_confirmation_or_rejection_is_retried_alone(
    link: RecordingLink, commands: PendingCommands, kind: Kind
) -> None:
    (entry,) = added(commands, Entry(kind, "a"))
    link.refuse("a")
    assert not entry.answers
    await until(lambda: len(link.sent) == 2)
    link.ok("a")
    assert entry.answers == [{}]


@pytest.mark.parametrize("kind", [Kind.BATCH, Kind.LOCK])
def test_transient_refusal_is_the_answer_to_a_batch_or_a_lock(
    link: RecordingLink, commands: PendingCommands, kind: Kind
) -> None:
    (entry,) = added(commands, Entry(kind, "a"))
    if kind is Kind.LOCK:
        link.locked("a", PROBLEM)
    else:
        link.refuse("a")
    assert code(entry) == "rate_limited"


def test_full_queue_is_not_retried(link: RecordingLink, commands: PendingCommands) -> None:
    (entry,) = added(commands, Entry(Kind.EVENT, "a"))
    link.refuse("a", {"code": "queue_full"})
    assert code(entry) == "queue_full"


def test_one_answer_settles_an_event_that_was_published_and_submitted(
    link: RecordingLink, commands: PendingCommands
) -> None:
    one, two = added(commands, Entry(Kind.EVENT, "a"), Entry(Kind.EVENT, "a"))
    batch = Entry(Kind.BATCH, "a")
    commands.add_batch([batch])
    assert link.sent == [b"EVENT a", b"BATCH a"]
    link.ok("a")
    assert one.answers == two.answers == batch.answers == [{}]


def test_answer_to_an_event_does_not_settle_the_rejection_of_the_same_message(
    link: RecordingLink, commands: PendingCommands
) -> None:
    event, rejection = added(commands, Entry(Kind.EVENT, "a"), Entry(Kind.REJECT, "a"))
    assert link.sent == [b"EVENT a", b"REJECT a"]
    link.ok("a", {"seq": 1})
    assert (event.answers, rejection.answers) == ([{"seq": 1}], [])
    link.ok("a", {"state": "rejected"})
    assert rejection.answers == [{"state": "rejected"}]


def test_answer_of_another_verb_is_ignored(link: RecordingLink, commands: PendingCommands) -> None:
    event, lock = added(commands, Entry(Kind.EVENT, "a"), Entry(Kind.LOCK, "l1"))
    link.ok("l1")
    link.locked("a", {})
    assert not event.answers and not lock.answers


def test_discarded_command_is_neither_answered_nor_sent_again(link: RecordingLink, commands: PendingCommands) -> None:
    (entry,) = added(commands, Entry(Kind.EVENT, "a"))
    commands.discard(entry)
    link.ok("a")
    link.on_up()
    assert (entry.answers, link.sent) == ([], [b"EVENT a"])


def test_end_of_the_link_answers_everything_now_and_later(link: RecordingLink, commands: PendingCommands) -> None:
    entries = added(commands, *(Entry(kind, kind.name) for kind in Kind if kind is not Kind.BATCH))
    link.on_end(error("client_closed"))
    late, batch = Entry(Kind.EVENT, "late"), Entry(Kind.BATCH, "batch")
    commands.add(late)
    commands.add_batch([batch])
    assert {code(entry) for entry in (*entries, late, batch)} == {"client_closed"}
