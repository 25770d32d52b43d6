"""All subscriptions of a client: opened on each connection from their places, and handed what comes for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from posthouse.client.backoff import Backoff
from posthouse.client.options import ClientOptions
from posthouse.client.problems import error_from
from posthouse.client.stream.commands import SentEvent, text_of, value_of
from posthouse.client.stream.reader import Forged
from posthouse.client.stream.subscription import Subscription
from posthouse.model.errors import PosthouseError


class Subscriptions:
    """The open subscriptions."""

    def __init__(self, send: Callable[[bytes], None], origin: str, options: ClientOptions) -> None:
        self._send = send
        self._origin = origin
        self._options = options
        self._open: dict[str, Subscription] = {}
        self._next_number = 1
        self._backoff = Backoff(0.05, 5.0)
        self._timers: set[asyncio.TimerHandle] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, filters: Sequence[Mapping[str, Any]], cursor: str | None, limit: int | None) -> Subscription:
        """Make a subscription; it is asked for at once if there is a connection."""
        number = self._next_number
        self._next_number += 1
        plain = [dict(each) for each in filters] or [{}]
        made = Subscription(number, plain, cursor, limit, self._options, self._send, self._forget)
        self._open[str(number)] = made
        made.open()
        return made

    def take_event(self, item: SentEvent | Forged) -> None:
        """Hand an event to its subscription; one that is forged ends it."""
        found = self._find(item.sub)
        if found is None:
            return
        if isinstance(item, Forged):
            found.fail(item.fault)
        else:
            found.take(item)

    def take_eose(self, arguments: Sequence[msgspec.Raw]) -> None:
        """Handle ["EOSE", sub, cursor]."""
        self._backoff.reset()
        if (found := self._find(text_of(arguments[0]))) is not None:
            found.take_end_of_stored(_cursor(arguments[1]))

    def take_closed(self, arguments: Sequence[msgspec.Raw]) -> None:
        """Handle ["CLOSED", sub, problem, cursor]."""
        found = self._find(text_of(arguments[0]))
        if found is None:
            return
        problem = value_of(arguments[1])
        failure = None if problem is None else error_from(problem, self._origin)
        if found.take_closed(failure, _cursor(arguments[2])):
            self._open_later(found)

    def resume(self) -> None:
        """Open everything on a new connection."""
        for each in self._open.values():
            each.reopen()

    def fail(self, failure: PosthouseError) -> None:
        """End everything: quietly when the client was closed, else with the error."""
        for timer in self._timers:
            timer.cancel()
        for each in list(self._open.values()):
            if failure.code == "client_closed":
                each.close()
            else:
                each.fail(failure)

    def _find(self, wire_id: str) -> Subscription | None:
        found = self._open.get(wire_id.partition(".")[0])
        return found if found is not None and found.wire_id == wire_id else None

    def _forget(self, subscription: Subscription) -> None:
        self._open.pop(subscription.wire_id.partition(".")[0], None)

    def _open_later(self, subscription: Subscription) -> None:
        def open_now() -> None:
            self._timers.discard(timer)
            subscription.open()

        timer = asyncio.get_running_loop().call_later(self._backoff.next_s(), open_now)
        self._timers.add(timer)


def _cursor(argument: msgspec.Raw) -> str | None:
    value = value_of(argument)
    if value is not None and not isinstance(value, str):
        raise ValueError("a cursor is a text")
    return value
