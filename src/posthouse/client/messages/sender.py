"""Sending messages: a request is sealed and signed once, and that event is what every retry sends.

The last requests are kept under their client_message_id with the event they became: a repetition of the same request
gets the original answer of the relay, another request under the same id is refused here. Who must be able to retry
after the process has ended composes first, keeps the event, and sends it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from posthouse.client.messages.compose import Composer, Request
from posthouse.client.stream.publisher import Published
from posthouse.model.errors import error
from posthouse.model.event import Event
from posthouse.model.fingerprint import fingerprint_prefix

KEPT = 1_000  # requests whose events are kept


class NotQueued(NamedTuple):
    """A reader of a topic that did not get the message."""

    recipient: str
    reason: str


class Sent(msgspec.Struct, frozen=True):
    """The relay's answer for a message it has."""

    #: of the message; of the first one when it was sent before
    id: str
    seq: int
    client_message_id: str
    #: the relay had it already
    duplicate: bool
    #: readers of the topic whose queue was full
    not_queued: tuple[NotQueued, ...]
    #: whether the relay still has the content
    history_available: bool
    event: Event


class Sender:
    """Sends the messages of one node."""

    def __init__(self, composer: Composer, publish: Callable[[Event], Awaitable[Published]]) -> None:
        self.composer = composer
        self._publish = publish
        #: (mesh, client_message_id) -> fingerprint of the request, and its event
        self._frozen: dict[tuple[str, str], tuple[bytes, Event]] = {}

    async def send(self, request: Request) -> Sent:
        """Send a request, over reconnects and transient refusals; raises what the relay refuses."""
        return await self.send_event(self._freeze(request))

    async def send_event(self, event: Event) -> Sent:
        """Send a message that was composed before."""
        published = await self._publish(event)
        return sent_of(event, published)

    def _freeze(self, request: Request) -> Event:
        key = (request.mesh, request.client_message_id)
        given = request.fingerprint
        known = self._frozen.pop(key, None)
        if known is None:
            known = (given, self.composer.freeze(request))
            while len(self._frozen) >= KEPT:
                del self._frozen[next(iter(self._frozen))]
        self._frozen[key] = known
        if known[0] != given:
            raise error(
                "idempotency_key_reused",
                client_message_id=request.client_message_id,
                conflict="request_fingerprint_mismatch",
                fingerprint_prefix=fingerprint_prefix(given),
            )
        return known[1]


def sent_of(event: Event, published: Published) -> Sent:
    """Return the answer to a message, from the answer to its event."""
    answer: dict[str, Any] = published.answer
    return Sent(
        id=str(answer.get("id", event.id)),
        seq=published.seq or 0,
        client_message_id=str(answer.get("client_message_id", "")),
        duplicate=published.duplicate,
        not_queued=tuple(NotQueued(each["recipient"], each["reason"]) for each in answer.get("not_queued") or ()),
        history_available=answer.get("history_available") is not False,
        event=event,
    )
