"""Rejecting messages: one command each, kept until the relay has answered, sent again on the next connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from posthouse.client.problems import error_from
from posthouse.client.stream.commands import write_command
from posthouse.model.errors import PosthouseError, Transient

_RETRY_S = 0.2  # after a refusal that may pass
#: answers of a relay for which the message needs no rejecting any more: it has left the queue
_OVER = frozenset({"delivery_closed", "delivery_unknown"})


class Rejecting:
    """The rejections of one node that are not answered."""

    def __init__(self, send: Callable[[bytes], None], relay: str) -> None:
        self._send = send
        self._relay = relay
        #: message id -> command and what waits for its answer
        self._unanswered: dict[str, tuple[bytes, asyncio.Future[bool]]] = {}

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._unanswered

    def reject(self, message_id: str, reason: str) -> asyncio.Future[bool]:
        """Reject a message; the future tells whether it was parked, and need not be waited for."""
        known = self._unanswered.get(message_id)
        if known is not None:
            return known[1]
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        command = write_command("REJECT", message_id, reason)
        self._unanswered[message_id] = (command, future)
        self._send(command)
        return future

    def take_ok(self, message_id: str, is_accepted: bool, body: Any) -> None:
        """Handle the answer to a rejection, if it is one of these."""
        known = self._unanswered.get(message_id)
        if known is None:
            return
        failure = None if is_accepted else error_from(body, self._relay)
        if isinstance(failure, Transient):
            asyncio.get_running_loop().call_later(_RETRY_S, self._again, message_id)
            return
        del self._unanswered[message_id]
        future = known[1]
        if future.done():
            return
        if failure is None or failure.code in _OVER:
            future.set_result(failure is None)
        else:
            _fail(future, failure)

    def resume(self) -> None:
        """Send everything unanswered again."""
        for command, _future in self._unanswered.values():
            self._send(command)

    def fail(self, failure: PosthouseError) -> None:
        """End everything that is open."""
        for _command, future in self._unanswered.values():
            _fail(future, failure)
        self._unanswered.clear()

    async def settled(self) -> None:
        """Wait until everything is answered."""
        while self._unanswered:
            await asyncio.wait([future for _command, future in self._unanswered.values()])

    def _again(self, message_id: str) -> None:
        if (known := self._unanswered.get(message_id)) is not None:
            self._send(known[0])


def _fail(future: asyncio.Future[bool], failure: PosthouseError) -> None:
    if not future.done():
        future.set_exception(failure)
        future.exception()  # seen: not everybody waits for it
