"""Request and reply: publish with a reply subject and wait for the reply.

All replies to one open Bus arrive at one private endpoint, `_reply.<instance>.>`, registered with the first request and
removed when the bus closes; the token after the instance identifies the request. The last token gives the kind of a
reply: `.partial` precedes the final one, `.failed` and `.busy` end the request with a reason. If the handler of a
request fails, its server publishes the reason to `<reply_to>.failed`, so that the caller need not wait for its timeout;
it never does so for an ordinary reply_to. A reply to a request that has ended becomes a dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from posthouse.bus.admission import Draft
from posthouse.bus.core import Core
from posthouse.bus.endpoints import find_endpoint, register, unregister
from posthouse.bus.handlers import Subscription, Subscriptions, UnwantedMessage
from posthouse.bus.publishing import Publisher
from posthouse.bus.results import PublishResult, RequestTimeout, refusal_text
from posthouse.bus.serving import EndpointServers
from posthouse.model.envelope import Envelope
from posthouse.model.errors import ERROR_CODES, PosthouseError, copy_error, error
from posthouse.model.request import AnswerState, unanswered
from posthouse.model.subjects import REPLIES, takes_answers

#: publishes the request with the given reply subject
PublishRequest = Callable[[str], Coroutine[Any, Any, PublishResult]]
#: callback(reply) for each partial reply
OnPartial = Callable[[Envelope], None]


class _OpenRequest(NamedTuple):
    reply: asyncio.Future[Envelope]
    on_partial: OnPartial | None


class Requests:
    """The open requests of one Bus."""

    def __init__(
        self, core: Core, servers: EndpointServers, subscriptions: Subscriptions, publisher: Publisher
    ) -> None:
        self._core = core
        self._publisher = publisher
        core.on_handler_failed = self._report_failure
        self._servers = servers
        self._subscriptions = subscriptions
        self._open: dict[str, _OpenRequest] = {}
        self._prefix = f"{REPLIES}{core.instance.name}"
        self._count = 0
        self._listening: asyncio.Task[None] | None = None

    async def request(
        self, subject: str, publish: PublishRequest, timeout_s: float, on_partial: OnPartial | None
    ) -> Envelope:
        """Publish with a reply subject and return the first reply that is not partial."""
        await self._listen()
        self._count += 1
        token = f"r{self._count}"
        reply: asyncio.Future[Envelope] = self._core.loop.create_future()
        self._open[token] = _OpenRequest(reply, on_partial)
        try:
            result = await publish(f"{self._prefix}.{token}")
            if not result.delivered_to:
                raise error("request_undelivered", subject=subject, reason=refusal_text(result))
            with self._servers.gate.opened():  # a handler of this process may have to reply
                envelope = await asyncio.wait_for(reply, timeout_s)
        except TimeoutError as failure:
            fields = {"subject": subject, "timeout_s": timeout_s}
            raise RequestTimeout(ERROR_CODES["request_timeout"], fields) from failure
        finally:
            del self._open[token]
        state = self._state_of(envelope)
        if state is not AnswerState.FINAL:
            raise unanswered(state, envelope.from_, _reason(envelope))
        return envelope

    async def close(self) -> None:
        """Remove the reply endpoint with all late replies."""
        if self._listening is not None:
            try:
                endpoint = await find_endpoint(self._core, f"{self._prefix}.>")
                await unregister(self._core, self._servers, endpoint, force=True)
            except PosthouseError:  # another process sweeps it like that of a dead process
                return

    def fail(self, failure: PosthouseError) -> None:
        """End every open request with the failure of the bus."""
        for reply, _on_partial in self._open.values():
            if not reply.done():
                reply.set_exception(copy_error(failure))
                reply.exception()  # mark it as retrieved: a request that still publishes raises that failure

    async def _listen(self) -> None:
        """Register the reply endpoint, once for all requests."""
        if self._listening is None:
            self._listening = self._core.loop.create_task(self._register(), context=self._core.context.copy())
        await asyncio.shield(self._listening)

    async def _register(self) -> None:
        subject, instance = f"{self._prefix}.>", self._core.instance
        ticket = self._subscriptions.add(Subscription(subject, self._on_reply))
        try:
            await register(self._core, self._servers, subject, instance.name, instance.number)
        except BaseException:  # the next request tries again
            self._subscriptions.remove(ticket)
            self._listening = None
            raise

    async def _on_reply(self, envelope: Envelope) -> None:
        token = envelope.subject.removeprefix(self._prefix).split(".")[1]
        state, found = self._state_of(envelope), self._open.get(token)
        if found is None or found.reply.done():
            if state is AnswerState.FINAL or state is AnswerState.PARTIAL:
                raise UnwantedMessage("no request waits for this reply")
            return  # the failed request itself is a dead letter
        if state is not AnswerState.PARTIAL:
            found.reply.set_result(envelope)
        elif found.on_partial is not None:
            found.on_partial(envelope)

    def _state_of(self, envelope: Envelope) -> AnswerState:
        """Return the kind of reply that the last token of its subject gives."""
        tokens = envelope.subject.removeprefix(self._prefix).split(".")[2:]
        return AnswerState(tokens[0]) if tokens and tokens[0] in tuple(AnswerState) else AnswerState.FINAL

    def _report_failure(self, envelope: Envelope, reason: str) -> None:
        """Publish to the caller of a request why its handler failed."""
        reply_to = envelope.reply_to
        if reply_to is None or not takes_answers(reply_to):
            return
        notice = Draft(
            f"{reply_to}.{AnswerState.FAILED}",
            {"reason": reason},
            envelope.subject,
            inherited=envelope.budget,
            in_reply_to=envelope.id,
        )
        notice.is_notice = True
        self._publisher.post(notice)


def _reason(envelope: Envelope) -> str:
    """Return why a request ended without an answer."""
    payload = envelope.payload
    found = payload.get("reason") if isinstance(payload, dict) else payload
    return found if isinstance(found, str) else ""
