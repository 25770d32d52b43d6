"""Commands that wait for the relay's answer: the one table behind publishes, confirmations, rejections and locks.

A command stays in the table until it is answered or its caller discards it. After a reconnect the table sends every
command again, in the order added; the relay recognizes ids it has, so a lost answer costs nothing. A transient
refusal is retried where the kind allows it:

    EVENT            after the delay the relay asks for; no later event overtakes it
    CONFIRM, REJECT  after a short delay
    BATCH, LOCK      never: the refusal is the answer, and the caller decides
    LOCK_WATCH       never; it stays in the table, because each change of the lock is another answer

A batch is not sent again after a reconnect either, because its caller keeps an outbox: its entries fail instead.
Every other entry gets exactly one answer, a result or an error, unless it was discarded.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from typing import Any

from posthouse.client.failures import Backoff, error_from, retry_after_s
from posthouse.client.stream.connection import Link
from posthouse.client.stream.frames import LockAnswer, OkAnswer
from posthouse.model.errors import PosthouseError, Transient, error

_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 5.0
_SHORT_RETRY_S = 0.2
#: transient, but it lasts until the recipient reads: every event behind it would wait too
_NOT_RETRIED = frozenset({"queue_full"})


class Kind(enum.Enum):
    """The purpose of a command, which decides how it is retried."""

    #: publishes an event, retried until its caller gives up
    EVENT = enum.auto()
    #: publishes an event of a list that its caller retries
    BATCH = enum.auto()
    CONFIRM = enum.auto()
    REJECT = enum.auto()
    LOCK = enum.auto()
    #: answered until an error ends it
    LOCK_WATCH = enum.auto()


#: the relay's result, or the error that ends the command
Answer = dict[str, Any] | PosthouseError
_RETRIED = frozenset({Kind.EVENT, Kind.CONFIRM, Kind.REJECT})
_EVENTS = (Kind.EVENT, Kind.BATCH)
_LOCKS = (Kind.LOCK, Kind.LOCK_WATCH)


class Pending:
    """One command without an answer; its owner subclasses it and handles the answer in `on_answer`."""

    __slots__ = ("command", "is_resent", "is_sent", "key", "kind", "refusal")

    def __init__(self, kind: Kind, key: str, command: bytes) -> None:
        self.kind = kind
        #: the id that the answer carries
        self.key = key
        self.command = command
        #: whether a new connection sends it again; otherwise the end of the connection ends it with an error
        self.is_resent = kind is not Kind.BATCH
        self.is_sent = False
        #: the last transient refusal
        self.refusal: PosthouseError | None = None

    def on_answer(self, answer: Answer) -> None:
        """Handle the answer, or the error that ends the command."""
        raise NotImplementedError

    def encode_again(self) -> bytes:
        """Return the command for a later connection, for commands that change with time."""
        return self.command


class PendingCommands:
    """The unanswered commands of one link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        #: key -> commands that one answer settles, as the same event may be published twice at once
        self._entries: dict[str, list[Pending]] = {}
        self._backoff = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S)
        #: set while refused events wait: no other event may overtake them
        self._event_retry: asyncio.TimerHandle | None = None
        #: set while refused confirmations or rejections wait
        self._short_retry: asyncio.TimerHandle | None = None
        self._failure: PosthouseError | None = None
        link.join(
            {OkAnswer: self._on_ok, LockAnswer: self._on_locked},
            on_up=self._send_all,
            on_lost=self._on_lost,
            on_end=self._fail,
        )

    def add(self, pending: Pending) -> None:
        """Send a command and keep it until it is answered; if the link has ended, answer it at once."""
        if self._failure is not None:
            pending.on_answer(self._failure)
            return
        entries = self._entries.setdefault(pending.key, [])
        if self._event_retry is None or pending.kind is not Kind.EVENT:
            if not entries or not any(each.is_sent and _share_answer(each, pending) for each in entries):
                self.link.send(pending.command)
            pending.is_sent = True
        entries.append(pending)

    def add_batch(self, batch: Sequence[Pending]) -> None:
        """Send commands in one frame and keep them; without a connection, answer them at once."""
        if self._failure is not None or not self.link.is_up:
            unreachable = error("relay_unreachable", relay=self.link.origin, reason="there is no connection")
            for pending in batch:
                pending.on_answer(self._failure or unreachable)
            return
        for pending in batch:
            pending.is_sent = True
            self._entries.setdefault(pending.key, []).append(pending)
        self.link.send(*(pending.command for pending in batch))

    def discard(self, pending: Pending) -> None:
        """Forget a command whose caller has given up; does nothing if it is already answered."""
        entries = self._entries.get(pending.key)
        if entries is not None and pending in entries:
            entries.remove(pending)
            if not entries:
                del self._entries[pending.key]

    def timeout_error(self, pending: Pending, timeout_s: float, name: str | None = None) -> PosthouseError:
        """Return the error for a caller whose deadline has passed: the reason why no answer came, if it is known."""
        known = pending.refusal or self.link.last_error
        return known or error("answer_missing", seconds=timeout_s, id=name or pending.key)

    def _on_ok(self, ok: OkAnswer) -> None:
        entries = self._entries.get(ok.id or "")
        if entries is not None and entries[0].kind not in _LOCKS:
            self._answer(entries, ok.body if ok.is_accepted else error_from(ok.body, self.link.origin))

    def _on_locked(self, locked: LockAnswer) -> None:
        entries = self._entries.get(locked.request)
        if entries is not None and entries[0].kind in _LOCKS:
            body = locked.body
            self._answer(entries, error_from(body, self.link.origin) if "code" in body else body)

    def _answer(self, entries: list[Pending], answer: Answer) -> None:
        """Give an answer to the entries of its key, or retry them."""
        # a node that writes to itself may publish and reject one id: the older command is answered first
        first = entries[0]
        answered = entries[:] if len(entries) == 1 else [each for each in entries if _share_answer(each, first)]
        if isinstance(answer, dict) and self._backoff.attempts and first.kind is Kind.EVENT:
            self._backoff.reset()
        for pending in answered:
            if isinstance(answer, PosthouseError) and self._is_retried(pending, answer):
                self._retry_later(pending, answer)
                continue
            # in the table until the call returns: if it finds the answer malformed, the end of the link answers it
            pending.on_answer(answer)
            if pending.kind is not Kind.LOCK_WATCH or isinstance(answer, PosthouseError):
                entries.remove(pending)
        if not entries:
            self._entries.pop(first.key, None)

    def _is_retried(self, pending: Pending, refusal: PosthouseError) -> bool:
        return pending.kind in _RETRIED and isinstance(refusal, Transient) and refusal.code not in _NOT_RETRIED

    def _retry_later(self, pending: Pending, refusal: PosthouseError) -> None:
        pending.refusal = refusal
        pending.is_sent = False
        loop = asyncio.get_running_loop()
        if pending.kind is not Kind.EVENT:
            self._short_retry = self._short_retry or loop.call_later(_SHORT_RETRY_S, self._retry_others)
        elif self._event_retry is None:
            # refused only because an earlier event of its frame was, and that one is settled now
            is_free = refusal.code == "earlier_refused"
            delay_s = 0.0 if is_free else max(retry_after_s(refusal), self._backoff.next_s())
            self._event_retry = loop.call_later(delay_s, self._retry_events)

    def _retry_events(self) -> None:
        self._event_retry = None
        self._send_again([each for entries in self._entries.values() for each in entries if each.kind is Kind.EVENT])

    def _retry_others(self) -> None:
        self._short_retry = None
        others = [each for entries in self._entries.values() for each in entries if each.kind is not Kind.EVENT]
        self._send_again(others)

    def _send_all(self) -> None:
        """Send everything again, in the order added: a new connection is up."""
        self._cancel_retries()
        self._end_unsendable()  # those whose caller was cancelled since the connection was lost
        everything = [each for entries in self._entries.values() for each in entries]
        for pending in everything:
            pending.is_sent = False
        self._send_again(everything)

    def _send_again(self, candidates: Sequence[Pending]) -> None:
        """Send unsent commands; of several entries that one answer settles, only the first."""
        sent: set[tuple[str, bool]] = set()
        for pending in candidates:
            if pending.is_sent:
                continue
            pending.is_sent = True
            same = (pending.key, pending.kind in _EVENTS)
            if same not in sent:
                sent.add(same)
                self.link.send(pending.encode_again())

    def _on_lost(self, _code: int | None, _reason: str) -> None:
        self._end_unsendable()

    def _end_unsendable(self) -> None:
        """Answer the commands that no new connection sends again with an error."""
        unreachable = error("relay_unreachable", relay=self.link.origin, reason="the connection was lost")
        for pending in [each for entries in self._entries.values() for each in entries if not each.is_resent]:
            self.discard(pending)
            pending.on_answer(unreachable)

    def _fail(self, failure: PosthouseError) -> None:
        """Answer everything with the error that ended the link, now and from now on."""
        self._failure = failure
        self._cancel_retries()
        everything = [each for entries in self._entries.values() for each in entries]
        self._entries.clear()
        for pending in everything:
            pending.on_answer(failure)

    def _cancel_retries(self) -> None:
        for timer in (self._event_retry, self._short_retry):
            if timer is not None:
                timer.cancel()
        self._event_retry = self._short_retry = None


def _share_answer(one: Pending, other: Pending) -> bool:
    """Return True if one answer settles both, given that they have the same key."""
    return (one.kind in _EVENTS) is (other.kind in _EVENTS)
