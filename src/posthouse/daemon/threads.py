"""Threads: the messages that answer each other, with a subject, the participants and the budget that is left.

Also recent traffic: which agents exchanged how many messages, over inbox and outbox.

`reply_to` makes a thread. It starts at any message of the thread and follows answers in both directions, over inbox and
outbox of one mesh. Nothing is stored for a thread, so it is correct in whatever order messages arrive. A thread shows
every message of it that this host has, whichever of its agents wrote or got it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.model.budget import MeshBudget, decode_mesh_budget
from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event, decode_event
from posthouse.model.freshness import Freshness, read_freshness
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.message import read_message
from posthouse.model.outbox_rules import MessageState, known_state
from posthouse.model.strict_json import parse_jcs
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.daemon", "threads.sql")
THREAD_MAX = 500  # messages; a longer thread is shown in part
SUBJECT_MAX_CHARACTERS = 80
SCANNED_MAX = 2_000  # messages that one page of threads is made of
TRAFFIC_MAX = 500  # pairs
_TRAFFIC_ROWS = 2_000  # newest ones of outbox and of inbox that are read: a page of the console waits for them
_ANSWERED, _READ, _UNREAD = "answered", "read", "unread"


class ThreadMessage(NamedTuple):
    """One message of a thread."""

    message_id: str
    reply_to_id: str | None
    #: when this host received or queued it
    at_ns: int
    sender: str
    sender_name: str | None
    from_agent: str
    #: node id, or #topic
    to: str
    to_agent: str
    body: str | None
    budget: MeshBudget | None
    #: True if an agent of this host sent it
    is_own: bool
    is_read: bool
    #: how far an own message has got, or whether a received one was read
    state: str = ""
    #: False if it only reports a failure or withdraws an earlier message, was itself withdrawn or replaced, or if the
    #: time until which it is valid is over
    expects_answer: bool = True
    #: the earlier message that this one replaces, if it is the host's own
    supersedes: str | None = None

    def to_api(self) -> dict[str, Any]:
        """Return the message as the local API shows it."""
        return {
            "message_id": self.message_id,
            "reply_to_id": self.reply_to_id,
            "at": format_utc(self.at_ns),
            "sender": self.sender,
            "sender_name": self.sender_name,
            "from_agent": self.from_agent,
            "to": self.to,
            "to_agent": self.to_agent,
            "body": self.body,
            "is_own": self.is_own,
            "is_read": self.is_read,
            "state": self.state,
            "expects_answer": self.expects_answer,
        }


class Thread(NamedTuple):
    """The messages of a thread that this host has, oldest first."""

    messages: Sequence[ThreadMessage]
    #: False if the thread has more messages than shown, or its first message is not here
    is_complete: bool

    def to_api(self) -> dict[str, Any]:
        """Return the thread as the local API shows it."""
        first = self.messages[0]
        budget = next((each.budget for each in reversed(self.messages) if each.budget is not None), None)
        return {
            "id": first.message_id,
            "subject": subject_of(first.body),
            "participants": _participants(self.messages),
            "budget": None if budget is None else _shown_budget(budget),
            "is_complete": self.is_complete,
            "messages": [each.to_api() for each in self.messages],
        }

    def to_summary(self) -> dict[str, Any]:
        """Return the thread as a list of threads shows it: with its last message instead of all."""
        whole = self.to_api()
        messages = whole.pop("messages")
        last = max(self.messages, key=lambda each: each.at_ns)
        return whole | {"message_count": len(messages), "last": last.to_api() | {"body": subject_of(last.body)}}


class ThreadPage(NamedTuple):
    """Threads, the one with the newest message first."""

    threads: list[Thread]
    #: wall time before which the next page continues; None at the end
    before_ns: int | None


class Traffic(NamedTuple):
    """Pairs that exchanged messages, one of them an agent of this host; the busiest first."""

    exchanges: list[Exchange]
    #: time from which all messages are counted: later than requested if there were more than this page reads
    since_ns: int


class Exchange(NamedTuple):
    """How many messages one agent sent to another, or to a topic."""

    sender: str
    from_agent: str
    #: node id, or #topic
    to: str
    to_agent: str
    messages: int
    last_at_ns: int

    def to_api(self) -> dict[str, Any]:
        """Return it as the local API shows it."""
        return {
            "sender": self.sender,
            "from_agent": self.from_agent,
            "to": self.to,
            "to_agent": self.to_agent,
            "count": self.messages,
            "last_at": format_utc(self.last_at_ns),
        }


class Threads:
    """Finds the threads of one mesh."""

    def __init__(
        self,
        node: str,
        inbox: Inbox,
        outbox: Outbox,
        open_event: Callable[[Event], str],
        name_of: Callable[[str], str | None],
    ) -> None:
        self._node = node
        self._inbox = inbox
        self._outbox = outbox
        self._open_event = open_event
        self._name_of = name_of

    async def find(self, message_id: str, agent: str) -> Thread | None:
        """Return the thread of a message, None if this host has no message of it."""
        found: dict[str, ThreadMessage] = {}
        asked: set[str] = set()
        wanted = {message_id}
        while wanted and len(found) < THREAD_MAX:
            asked |= wanted
            for each in await self._related(wanted, agent):
                found.setdefault(each.message_id, each)
            named = {each.reply_to_id for each in found.values() if each.reply_to_id is not None}
            wanted = (found.keys() | named) - asked
        if not found:
            return None
        # the first message of a thread answers none, and may arrive after an answer to it
        messages = sorted(found.values(), key=lambda each: (each.reply_to_id is not None, each.at_ns))
        is_complete = messages[0].reply_to_id is None and not wanted and len(messages) <= THREAD_MAX
        return Thread(_with_answers(messages[:THREAD_MAX]), is_complete)

    async def newest(self, before_ns: int, limit: int, agent: str) -> ThreadPage:
        """Return threads whose newest message is older than a time, newest first."""
        sent = await self._outbox.store.pool.run(lambda db: list(db.execute(SQL.newest_sent, (before_ns, SCANNED_MAX))))
        received = await self._inbox.store.pool.run(
            lambda db: list(db.execute(SQL.newest_received, (before_ns, SCANNED_MAX)))
        )
        messages = sorted([*sent, *received], key=lambda row: -row[1])[:SCANNED_MAX]
        threads: list[Thread] = []
        known: set[str] = set()
        for message_id, at_ns in messages:
            if message_id in known:
                continue
            if len(threads) == limit:
                return ThreadPage(_without_replaced(threads), at_ns + 1)
            thread = await self.find(message_id, agent)
            if thread is None:
                continue
            known |= {each.message_id for each in thread.messages}
            if max(each.at_ns for each in thread.messages) < before_ns:  # otherwise an earlier page has it
                threads.append(thread)
        return ThreadPage(_without_replaced(threads), messages[-1][1] if len(messages) == SCANNED_MAX else None)

    async def traffic(self, since_ns: int) -> Traffic:
        """Return the traffic of this host's agents since a time, or among the newest messages."""
        bound = (_TRAFFIC_ROWS - 1,)
        last_sent = await self._outbox.store.pool.run(lambda db: _rows(db, SQL.oldest_sent_read, bound))
        last_received = await self._inbox.store.pool.run(lambda db: _rows(db, SQL.oldest_received_read, bound))
        since_ns = max(since_ns, *(at_ns for (at_ns,) in (*last_sent, *last_received)), 0)
        values = {"node": self._node, "since_ns": since_ns, "limit": TRAFFIC_MAX, "rows": _TRAFFIC_ROWS}
        sent = await self._outbox.store.pool.run(lambda db: _rows(db, SQL.sent_traffic, values))
        received = await self._inbox.store.pool.run(lambda db: _rows(db, SQL.received_traffic, values))
        found = [*(Exchange(self._node, *row) for row in sent), *(Exchange(*row) for row in received)]
        return Traffic(sorted(found, key=lambda each: -each.messages)[:TRAFFIC_MAX], since_ns)

    async def message_ids(self, message_id: str, agent: str) -> frozenset[str]:
        """Return the ids of a thread's messages; only the given one if this host has no other."""
        thread = await self.find(message_id, agent)
        return frozenset({message_id} if thread is None else (each.message_id for each in thread.messages))

    async def _related(self, ids: Collection[str], agent: str) -> list[ThreadMessage]:
        """Return the messages with these ids and those that answer them; own ones come first."""
        values = {"ids": msgspec.json.encode(sorted(ids)).decode(), "agent": agent}
        sent = await self._outbox.store.pool.run(lambda db: _rows(db, SQL.sent, {"ids": values["ids"]}))
        received = await self._inbox.store.pool.run(lambda db: _rows(db, SQL.received, values))
        return [*(self._sent(*row) for row in sent), *(self._received(*row) for row in received)]

    def _sent(
        self,
        message_id: str,
        reply_to: str | None,
        at_ns: int,
        from_agent: str,
        destination: str,
        to_agent: str,
        raw: bytes | None,
        status: str,
        is_withdrawn: int,
        *outcome: Any,
    ) -> ThreadMessage:
        body, budget, said = None, None, Freshness()
        if raw is not None:
            event = decode_event(raw)
            message = read_message(event)
            budget, body = message.budget, self._body(event)
            said = read_freshness(parse_jcs(message.meta) if message.meta else None)
        reports = said.is_failure or said.withdraws is not None
        state = known_state(status, *outcome)
        return ThreadMessage(
            message_id,
            reply_to,
            at_ns,
            self._node,
            self._name_of(self._node),
            from_agent,
            destination,
            to_agent,
            body,
            budget,
            is_own=True,
            is_read=True,
            state=state.value,
            expects_answer=not (reports or is_withdrawn or self._is_over(said.valid_until_ns)),
            supersedes=said.supersedes,
        )

    def _received(
        self,
        message_id: str,
        reply_to: str | None,
        at_ns: int,
        sender: str,
        sender_name: str | None,
        from_agent: str,
        topic: str | None,
        to_agent: str,
        body: str | None,
        budget: str | None,
        read_at_ns: int | None,
        is_withdrawn: int,
        valid_until_ns: int | None,
        is_read_by_any: int,
        expects_answer: int,
    ) -> ThreadMessage:
        is_stale = self._is_over(valid_until_ns)
        was_read = read_at_ns is not None and (valid_until_ns is None or read_at_ns < valid_until_ns)
        return ThreadMessage(
            message_id,
            reply_to,
            at_ns,
            sender,
            sender_name,
            from_agent,
            self._node if topic is None else f"#{topic}",
            to_agent,
            None if is_withdrawn or (is_stale and not was_read) else body,
            None if budget is None else decode_mesh_budget(budget),
            is_own=sender == self._node,
            is_read=read_at_ns is not None,
            state=_READ if is_read_by_any else _UNREAD,
            expects_answer=bool(expects_answer) and not (is_withdrawn or is_stale),
        )

    def _is_over(self, valid_until_ns: int | None) -> bool:
        return valid_until_ns is not None and self._inbox.store.clock.wall_ns() >= valid_until_ns

    def _body(self, event: Event) -> str | None:
        try:
            return self._open_event(event)
        except PosthouseError:
            return None


def _with_answers(messages: Sequence[ThreadMessage]) -> list[ThreadMessage]:
    """Return the messages with the state `answered` where another agent answered one."""
    answered_by: dict[str | None, set[tuple[str, str]]] = {}
    for each in messages:
        answered_by.setdefault(each.reply_to_id, set()).add((each.sender, each.from_agent))
    lost = (MessageState.DEAD, MessageState.ABORTED)

    def is_answered(message: ThreadMessage) -> bool:
        authors = answered_by.get(message.message_id, set())
        return message.state not in lost and bool(authors - {(message.sender, message.from_agent)})

    return [each._replace(state=_ANSWERED) if is_answered(each) else each for each in messages]


def _without_replaced(threads: Sequence[Thread]) -> list[Thread]:
    """Return the threads; messages that a newer one among them replaces expect no answer."""
    replaced = {each.supersedes for thread in threads for each in thread.messages} - {None}

    def shown(thread: Thread) -> Thread:
        messages = [
            each._replace(expects_answer=False) if each.message_id in replaced else each for each in thread.messages
        ]
        return thread._replace(messages=messages)

    return [shown(thread) for thread in threads] if replaced else list(threads)


def subject_of(body: str | None) -> str:
    """Return the subject of a thread: the first line with words of its first message."""
    line = next((line.strip() for line in (body or "").splitlines() if line.strip()), "")
    return line if len(line) <= SUBJECT_MAX_CHARACTERS else line[: SUBJECT_MAX_CHARACTERS - 3] + "..."


def _participants(messages: Iterable[ThreadMessage]) -> list[dict[str, Any]]:
    """Return the agents that wrote, in the order of their first message."""
    named = {(each.sender, each.from_agent): each.sender_name for each in reversed(list(messages))}
    return [{"node": sender, "name": name, "agent": agent} for (sender, agent), name in reversed(list(named.items()))]


def _shown_budget(budget: MeshBudget) -> dict[str, Any]:
    return {
        "hops_left": max(0, budget.max_hops - budget.hop_count),
        "calls_left": budget.call_budget_remaining,
        "expires_at": format_utc(budget.ttl * MILLISECOND_NS),
    }


def _rows(db: apsw.Connection, statement: str, values: dict[str, Any] | tuple[int]) -> list[Any]:
    return list(db.execute(statement, values))
