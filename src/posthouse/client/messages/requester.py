"""Requests to a relay: send a message, wait for its answers, return the final one.

The request goes to `POST /v1/request`, whose body streams the answers. If the connection is lost, the same event is
sent again until the deadline: the relay recognizes it and returns the answers that have arrived in the meantime. Every
answer is verified and confirmed, so it does not wait in this node's queue; a mailbox of the same client does not yield
it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from posthouse.client.failures import Backoff
from posthouse.client.transport import Requests
from posthouse.client.trust.signing import Signer, open_content, verify_events, with_mesh
from posthouse.model.api import AnswerLine
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import CONFIRMATION, Event
from posthouse.model.limits import SECOND_NS
from posthouse.model.message import Message, read_message
from posthouse.model.message_api import Answer
from posthouse.model.request import AnswerState, RequestMark, is_answer_to, message_meta, read_answer_state, unanswered

#: callback(answer) for each partial answer
OnPartial = Callable[[Answer], None]
#: failures after which the same request is sent again
_RETRIED = frozenset({"relay_unreachable", "relay_stopping", "token_invalid"})


class Requester:
    """Sends the requests of one node."""

    def __init__(self, requests: Requests, signer: Signer, clock: Clock, awaited: set[str]) -> None:
        self._requests = requests
        self._signer = signer
        self._clock = clock
        #: requests that wait for answers, by the id of the message; no mailbox yields their answers
        self._awaited = awaited

    async def request(self, event: Event, mark: RequestMark, to: str, on_partial: OnPartial | None) -> Answer:
        """Send a composed request and return its final answer, or raise an error with the reason why there is none."""
        call = _Call(self._requests, self._signer, event, to, on_partial)
        left_s = max(0.0, (mark.deadline_ns - self._clock.wall_ns()) / SECOND_NS)
        self._awaited.add(event.id)
        try:
            async with asyncio.timeout(left_s):
                return await call.run()
        except TimeoutError as late:
            raise error("request_timeout", subject=to, timeout_s=round(left_s, 3)) from late
        finally:
            self._awaited.discard(event.id)


class _Call:
    """One request, over as many connections as it takes."""

    def __init__(self, requests: Requests, signer: Signer, event: Event, to: str, on_partial: OnPartial | None) -> None:
        self._requests = requests
        self._signer = signer
        self._event = event
        self._message = read_message(event)
        self._to = to
        self._on_partial = on_partial
        self._seen: set[str] = set()

    async def run(self) -> Answer:
        """Return the final answer; send the request again after a lost connection."""
        backoff = Backoff(max_s=2.0)
        while True:
            try:
                return await self._once()
            except PosthouseError as failure:
                if failure.code not in _RETRIED:
                    raise
            await asyncio.sleep(backoff.next_s())

    async def _once(self) -> Answer:
        async with contextlib.aclosing(self._requests.post_lines("/v1/request", {"event": self._event})) as lines:
            async for data in lines:
                line = self._requests.decode(data, AnswerLine)
                if line.type == "expired":
                    raise TimeoutError
                if line.type == "stopping":
                    break
                answer = await self._read(line)
                if answer is not None and answer.state is AnswerState.FINAL:
                    return answer
                if answer is not None and answer.state is not AnswerState.PARTIAL:
                    raise unanswered(answer.state, self._to, answer.body or "")
                if answer is not None and self._on_partial is not None:
                    self._on_partial(answer)
        raise error("relay_stopping")

    async def _read(self, line: AnswerLine) -> Answer | None:
        """Return the new answer in a line, verified and confirmed."""
        if line.event is None:
            return None
        event = line.event.event
        if event.id in self._seen:
            return None
        self._seen.add(event.id)
        await verify_events([event])
        answer = read_message(event)
        if not is_answer_to(self._message, self._event.pubkey, answer, event.pubkey):
            reason = f"{event.id} does not answer the request"
            raise error("answer_invalid", relay=self._requests.origin, reason=reason)
        if answer.recipient is not None:
            await self._confirm(event, answer)
        return self._opened(event, answer)

    async def _confirm(self, event: Event, answer: Message) -> None:
        """Take an answer out of this node's queue; a mailbox may have done so already."""
        tags = with_mesh([("p", event.pubkey), ("e", event.id)], answer.mesh)
        confirmation = self._signer.sign(CONFIRMATION, "", tags)
        with contextlib.suppress(PosthouseError):  # otherwise it stays in the queue, and a later reader confirms it
            await self._requests.post_as(dict[str, Any], "/v1/events", confirmation)

    def _opened(self, event: Event, answer: Message) -> Answer:
        meta = message_meta(answer)
        body, undecryptable = None, None
        try:
            body = open_content(self._signer.key, event)
        except PosthouseError as failure:
            undecryptable = failure.code
        return Answer(
            state=read_answer_state(meta),
            message_id=event.id,
            sender=event.pubkey,
            from_agent=answer.from_agent,
            body=body,
            meta=meta,
            undecryptable=undecryptable,
        )
