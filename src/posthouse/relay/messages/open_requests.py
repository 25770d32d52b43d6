"""Requests that wait for answers on this relay: each gets the answers that are committed while it is open.

A request is an ordinary message; this module only finds its answers among committed messages and passes them to the
waiting caller. Nothing is stored: a caller that lost its connection sends the same request again and gets the answers
that were stored in the meantime. Answers also go to the queue of the request's sender, like every message.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import MESSAGE, Event
from posthouse.model.filters import Filter
from posthouse.model.message import Message, read_message
from posthouse.model.request import AnswerState, is_answer_to, message_meta, read_answer_state
from posthouse.relay.store.event_rows import Query, Scope
from posthouse.relay.store.protocol import RelayStore
from posthouse.relay.wire.accept_results import Committed, Listen, OccasionalListener

MAX_OPEN = 10_000
MAX_OPEN_PER_NODE = 256
_STORED_PAGE = 500


class FoundAnswer(msgspec.Struct, frozen=True, gc=False):
    """A committed message that answers a request."""

    seq: int
    raw: bytes
    state: AnswerState


class OpenRequest:
    """One request whose caller waits."""

    def __init__(self, node: str, request: Message) -> None:
        self.node = node
        self.request = request
        self.answers: asyncio.Queue[FoundAnswer] = asyncio.Queue()

    def offer(self, seq: int, event: Event, raw: bytes) -> None:
        """Queue a message that names the request for the caller, if it answers the request."""
        answer = read_message(event)
        if is_answer_to(self.request, self.node, answer, event.pubkey):
            self.answers.put_nowait(FoundAnswer(seq, raw, read_answer_state(message_meta(answer))))


class OpenRequests:
    """The open requests of a relay, by the id of the message."""

    def __init__(self, store: RelayStore, listen: Listen) -> None:
        self._store = store
        self._listening = OccasionalListener(listen, self._publish)
        self._open: dict[str, list[OpenRequest]] = {}
        self._by_node: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._by_node.total()

    @contextmanager
    def wait(self, message_id: str, node: str, request: Message) -> Iterator[OpenRequest]:
        """Collect the answers to a request while the block runs, or raise open_requests_exceeded."""
        if self._by_node[node] >= MAX_OPEN_PER_NODE or len(self) >= MAX_OPEN:
            raise error("open_requests_exceeded", count=self._by_node[node])
        waiting = OpenRequest(node, request)
        self._listening.set(is_needed=True)
        self._open.setdefault(message_id, []).append(waiting)
        self._by_node[node] += 1
        try:
            yield waiting
        finally:
            self._by_node[node] -= 1
            if not self._by_node[node]:
                del self._by_node[node]
            self._open[message_id].remove(waiting)
            if not self._open[message_id]:
                del self._open[message_id]
            self._listening.set(is_needed=bool(self._open))

    def _publish(self, batch: Sequence[Committed]) -> None:
        """Pass committed answers to the requests that wait for them; called in commit order."""
        for committed in batch:
            if committed.event.kind != MESSAGE or committed.seq is None:
                continue
            for waiting in self._open.get(committed.event.value("e") or "", ()):
                waiting.offer(committed.seq, committed.event, committed.raw)

    async def offer_stored(self, message_id: str, after_seq: int, waiting: OpenRequest) -> int:
        """Pass on the answers that are already stored; return the seq up to which they were read."""
        wanted = Filter(kinds=frozenset({MESSAGE}), tags={"e": frozenset({message_id})}, mesh=waiting.request.mesh)
        scope = Scope(waiting.node, frozenset({waiting.request.mesh}))
        while True:
            page = await self._store.query(Query([wanted], scope, after_seq, _STORED_PAGE))
            for stored in page.events:
                try:
                    waiting.offer(stored.seq, msgspec.json.decode(stored.raw, type=Event), stored.raw)
                except PosthouseError:  # accepted by an older relay with other rules
                    continue
            after_seq = page.through_seq
            if page.is_end:
                return after_seq
