"""Request and reply: publish with a reply subject and wait for the first reply.

All replies to one open Bus arrive at one private endpoint, `_reply.<instance>.>`, registered with the first request
and removed when the bus closes; the token after the instance identifies the request. If the handler of a request
fails, its server publishes the reason to `<reply_to>.failed`, so that the caller does not wait in vain; it never does
so for an ordinary reply_to. A reply to a request that has ended becomes a dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from posthouse.bus.admission import Draft
from posthouse.bus.core import Core
from posthouse.bus.endpoints import find_endpoint, register, unregister
from posthouse.bus.handlers import REPLIES, Subscription, Subscriptions, UnwantedMessage
from posthouse.bus.publishing import Publisher
from posthouse.bus.results import PublishResult, RequestTimeout, refusal_text
from posthouse.bus.serving import EndpointServers
from posthouse.model.envelope import Envelope
from posthouse.model.errors import ERROR_CODES, PosthouseError, error
from posthouse.sqlite.connection import copy_error

_FAILED = ".failed"
#: publishes the request with the given reply subject
PublishRequest = Callable[[str], Coroutine[Any, Any, PublishResult]]


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
        self._replies: dict[str, asyncio.Future[Envelope]] = {}
        self._prefix = f"{REPLIES}{core.instance.name}"
        self._count = 0
        self._listening: asyncio.Task[None] | None = None

    async def request(self, subject: str, publish: PublishRequest, timeout_s: float) -> Envelope:
        """Publish with a reply subject and return the first reply."""
        await self._listen()
        self._count += 1
        token = f"r{self._count}"
        reply: asyncio.Future[Envelope] = self._core.loop.create_future()
        self._replies[token] = reply
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
            del self._replies[token]
        if envelope.subject.endswith(_FAILED):
            raise error("request_failed", subject=envelope.from_, reason=envelope.payload["reason"])
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
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(copy_error(failure))
                reply.exception()  # retrieved: a request that still publishes raises the failure of its publish

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
        reply = self._replies.get(token)
        if reply is not None and not reply.done():
            reply.set_result(envelope)
        elif not envelope.subject.endswith(_FAILED):  # the failed request itself is a dead letter
            raise UnwantedMessage("no request waits for this reply")

    def _report_failure(self, envelope: Envelope, reason: str) -> None:
        """Publish to the caller of a request why its handler failed."""
        reply_to = envelope.reply_to
        if reply_to is None or not reply_to.startswith(REPLIES):
            return
        notice = Draft(
            f"{reply_to}{_FAILED}",
            {"reason": reason},
            envelope.subject,
            inherited=envelope.budget,
            in_reply_to=envelope.id,
        )
        notice.is_notice = True
        self._publisher.post(notice)
