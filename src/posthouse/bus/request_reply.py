"""Request and reply: publish with a reply subject and wait for the first answer.

All replies to one open Bus arrive at one private endpoint, `_reply.<instance>.>`, registered with the first request
and removed when the bus closes; the last token identifies the request. A reply to a request that has ended is
dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from posthouse.bus.endpoints import find_endpoint, register, unregister
from posthouse.bus.handlers import Subscription
from posthouse.bus.results import PublishResult
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError, error
from posthouse.sqlite.connection import copy_error

if TYPE_CHECKING:
    from posthouse.bus.session import Session

Publish = Callable[[str], Coroutine[Any, Any, PublishResult]]


class Requests:
    """The open requests of one Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[str, asyncio.Future[Envelope]] = {}
        self._prefix = f"_reply.{session.instance.name}"
        self._asked = 0
        self._is_listening = False

    async def ask(self, subject: str, publish: Publish, timeout_s: float) -> Envelope:
        """Publish with a reply subject and return the first reply."""
        self._listen()
        self._asked += 1
        token = f"r{self._asked}"
        reply: asyncio.Future[Envelope] = self._session.loop.create_future()
        self._waiting[token] = reply
        try:
            result = await publish(f"{self._prefix}.{token}")
            if not result.delivered_to:
                reasons = "; ".join(entry.text for entry in result.rejected) or "no endpoint matches"
                raise error("request_undelivered", subject=subject, reason=reasons)
            return await asyncio.wait_for(reply, timeout_s)
        except TimeoutError as late:
            raise error("request_timeout", subject=subject, timeout_s=timeout_s) from late
        finally:
            del self._waiting[token]

    def close(self) -> None:
        """Remove the reply endpoint with whatever came too late."""
        if self._is_listening:
            try:
                unregister(self._session, find_endpoint(self._session, f"{self._prefix}.>"), force=True)
            except PosthouseError:  # the sweep of another process removes what a dead one leaves
                return

    def fail(self, failure: PosthouseError) -> None:
        """Tell everybody who waits that no reply will come."""
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(copy_error(failure))
                reply.exception()  # seen: whoever still publishes hears of it there

    def _listen(self) -> None:
        if self._is_listening:
            return
        self._is_listening = True
        endpoint = f"{self._prefix}.>"
        self._session.subscriptions.add(Subscription(endpoint, self._replied))
        register(self._session, endpoint, self._session.instance.name, self._session.instance.number)

    async def _replied(self, envelope: Envelope) -> None:
        reply = self._waiting.get(envelope.subject.rpartition(".")[2])
        if reply is not None and not reply.done():
            reply.set_result(envelope)
