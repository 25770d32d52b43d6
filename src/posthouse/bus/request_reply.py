"""Request and reply: publish with a reply subject and wait for the first reply.

All replies to one open Bus arrive at one private endpoint, `_reply.<instance>.>`, registered with the first request
and removed when the bus closes; the last token identifies the request. A reply to a request that has ended is
dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from posthouse.bus.core import Core
from posthouse.bus.endpoints import find_endpoint, register, unregister
from posthouse.bus.handlers import Subscription, Subscriptions
from posthouse.bus.results import PublishResult
from posthouse.bus.serving import EndpointServers
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError, error
from posthouse.sqlite.connection import copy_error

#: publishes the request with the given reply subject
PublishRequest = Callable[[str], Coroutine[Any, Any, PublishResult]]


class Requests:
    """The open requests of one Bus."""

    def __init__(self, core: Core, servers: EndpointServers, subscriptions: Subscriptions) -> None:
        self._core = core
        self._servers = servers
        self._subscriptions = subscriptions
        self._replies: dict[str, asyncio.Future[Envelope]] = {}
        self._prefix = f"_reply.{core.instance.name}"
        self._count = 0
        self._is_listening = False

    async def request(self, subject: str, publish: PublishRequest, timeout_s: float) -> Envelope:
        """Publish with a reply subject and return the first reply."""
        self._listen()
        self._count += 1
        token = f"r{self._count}"
        reply: asyncio.Future[Envelope] = self._core.loop.create_future()
        self._replies[token] = reply
        try:
            result = await publish(f"{self._prefix}.{token}")
            if not result.delivered_to:
                reasons = "; ".join(rejection.text for rejection in result.rejected) or "no endpoint matches"
                raise error("request_undelivered", subject=subject, reason=reasons)
            return await asyncio.wait_for(reply, timeout_s)
        except TimeoutError as failure:
            raise error("request_timeout", subject=subject, timeout_s=timeout_s) from failure
        finally:
            del self._replies[token]

    def close(self) -> None:
        """Remove the reply endpoint with all late replies."""
        if self._is_listening:
            try:
                endpoint = find_endpoint(self._core, f"{self._prefix}.>")
                unregister(self._core, self._servers, endpoint, force=True)
            except PosthouseError:  # another process sweeps it like that of a dead process
                return

    def fail(self, failure: PosthouseError) -> None:
        """End every open request with the failure of the bus."""
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(copy_error(failure))
                reply.exception()  # retrieved: a request that still publishes raises the failure of its publish

    def _listen(self) -> None:
        if self._is_listening:
            return
        self._is_listening = True
        subject, instance = f"{self._prefix}.>", self._core.instance
        self._subscriptions.add(Subscription(subject, self._on_reply))
        register(self._core, self._servers, subject, instance.name, instance.number)

    async def _on_reply(self, envelope: Envelope) -> None:
        reply = self._replies.get(envelope.subject.rpartition(".")[2])
        if reply is not None and not reply.done():
            reply.set_result(envelope)
