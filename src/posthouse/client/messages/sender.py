"""Make the event of a message: a request is sealed and signed once, and every retry sends that same event.

Direct messages are sealed for their reader unless the caller opts out; topics are in the clear. Sealing a request
again gives the same bytes, so the relay recognizes a request that is repeated under its client_message_id by another
process, after a restore or from another outbox, and answers with the original message. The last requests are kept
with their events, by client_message_id and agent: another request under the same id is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypedDict

import msgspec

from posthouse.client.stream.publisher import Published
from posthouse.client.trust.signing import Signer, with_mesh
from posthouse.keys.sealing import BOX, seal_box_repeatably
from posthouse.model.address import validate_agent_name
from posthouse.model.budget import MeshBudget, encode_mesh_budget
from posthouse.model.envelope import Usage
from posthouse.model.errors import error
from posthouse.model.event import MESSAGE, Event, is_event_id
from posthouse.model.freshness import with_freshness
from posthouse.model.message import (
    DEFAULT_PRIORITY,
    DestinationKind,
    Priority,
    check_body,
    direct_ref,
    fingerprint,
    fingerprint_prefix,
    meta_field,
    validate_client_message_id,
)
from posthouse.model.message_api import NotQueued
from posthouse.model.node import validate_node_id
from posthouse.model.request import ANSWER, AnswerState
from posthouse.model.subjects import validate_topic
from posthouse.model.ulid import UlidGenerator
from posthouse.model.usage import with_usage
from posthouse.tracing import TRACEPARENT, Role, Tracer, current_traceparent, valid_traceparent

TOPIC_MARK = "#"


class MessageOptions(TypedDict, total=False):
    """Optional arguments of a message."""

    #: the sender's own id, at most 255 bytes; minted if absent
    client_message_id: str | None
    #: id of the message it answers
    reply_to: str | None
    #: now, next (the default) or low; a hint for the reader, which never reorders messages
    priority: Priority | str | None
    #: an object, never sealed
    meta: Mapping[str, Any] | None
    #: model, tokens and cost of the message; it becomes meta.usage, which cost reports read
    usage: Usage | Mapping[str, Any] | None
    budget: MeshBudget | None
    #: members that the message mentions, by name or node id
    mentions: Sequence[str]
    #: False leaves a direct message in the clear
    is_sealed: bool
    #: this host's agent that sends it; the host itself if absent
    from_agent: str
    #: the recipient's agent that a direct message is for; its default inbox if absent
    to_agent: str
    #: the kind of answer that a reply gives to its request: partial, final, busy or failed
    answer: AnswerState | str
    #: span of OpenTelemetry that sends it; the current one of this program if absent
    traceparent: str | None


class Request(NamedTuple):
    """A validated request to send a message, either to `node` or to `topic`."""

    mesh: str
    node: str | None
    topic: str | None
    body: str
    client_message_id: str
    reply_to: str | None
    priority: Priority
    #: JCS text, "" when absent
    meta: str
    budget: MeshBudget | None
    mentions: tuple[str, ...]
    is_sealed: bool
    #: "" for the host itself
    from_agent: str = ""
    #: "" for the default inbox
    to_agent: str = ""
    #: span that sends it; the relay does not compare it, so a retry may have another span
    traceparent: str | None = None

    @property
    def fingerprint(self) -> bytes:
        """The request fingerprint, over the plaintext."""
        kind = DestinationKind.DM if self.node is not None else DestinationKind.TOPIC
        ref = direct_ref(self.node, self.to_agent) if self.node is not None else str(self.topic)
        return fingerprint(kind, ref, self.reply_to, self.priority, self.meta, self.body.encode())


class Composer:
    """Makes the events of one node's messages."""

    def __init__(self, signer: Signer, minter: UlidGenerator) -> None:
        self._signer = signer
        self._minter = minter

    def request(self, destination: str, body: str, mesh: str, given: MessageOptions) -> Request:
        """Return a validated request, or raise its first error; `destination` is a node id or #topic."""
        is_topic = destination.startswith(TOPIC_MARK)
        node = None if is_topic else validate_node_id(destination)
        topic = validate_topic(destination[len(TOPIC_MARK) :]) if is_topic else None
        client_message_id = given.get("client_message_id")
        if client_message_id is None:
            client_message_id = self._minter.mint()
        from_agent, to_agent = given.get("from_agent", ""), given.get("to_agent", "")
        for agent in filter(None, (from_agent, to_agent)):
            validate_agent_name(agent)
        if to_agent and is_topic:
            raise error("value_invalid", name="to_agent", reason="a message to a topic cannot be for one agent")
        check_body(body.encode())
        return Request(
            mesh=mesh,
            node=node,
            topic=topic,
            body=body,
            client_message_id=validate_client_message_id(client_message_id),
            reply_to=_reply_to(given.get("reply_to")),
            priority=_priority(given.get("priority")),
            meta=_meta(given),
            budget=given.get("budget"),
            mentions=tuple(dict.fromkeys(map(validate_node_id, given.get("mentions", ())))),
            is_sealed=given.get("is_sealed", True) and not is_topic,
            from_agent=from_agent,
            to_agent=to_agent,
            traceparent=_traceparent(given.get("traceparent")),
        )

    def seal_and_sign(self, request: Request) -> Event:
        """Return the event of a request.

        Each call signs a new time, so the event is new, but seals the same bytes: a relay that has one of the events
        treats every other one as its retry.
        """
        options, address = _option_tags(request), [_address_tag(request)]
        content = request.body
        if request.node is not None and request.is_sealed:
            # none of the parts can contain a NUL
            purpose = "\0".join((request.mesh, request.from_agent, request.to_agent, request.client_message_id))
            content = seal_box_repeatably(self._signer.key, request.node, content.encode(), purpose)
            address = [("enc", BOX), *address]
        return self._signer.sign(MESSAGE, content, with_mesh([*address, *options], request.mesh))


def _address_tag(request: Request) -> tuple[str, str]:
    return ("t", str(request.topic)) if request.node is None else ("p", request.node)


def _option_tags(request: Request) -> list[tuple[str, str]]:
    tags = [("c", request.client_message_id)]
    if request.from_agent:
        tags.append(("from", request.from_agent))
    if request.to_agent:
        tags.append(("to", request.to_agent))
    if request.reply_to is not None:
        tags.append(("e", request.reply_to))
    if request.priority is not DEFAULT_PRIORITY:
        tags.append(("priority", request.priority.value))
    if request.meta:
        tags.append(("meta", request.meta))
    if request.budget is not None:
        tags.append(("budget", encode_mesh_budget(request.budget)))
    if request.traceparent is not None:
        tags.append((TRACEPARENT, request.traceparent))
    return tags + [("mention", node) for node in request.mentions]


def _traceparent(given: str | None) -> str | None:
    if given is None:
        return current_traceparent()
    if valid_traceparent(given) is None:
        raise error("value_invalid", name=TRACEPARENT, reason="it is not a traceparent of W3C Trace Context")
    return given


def _reply_to(event_id: str | None) -> str | None:
    if event_id is not None and not is_event_id(event_id):
        raise error("id_invalid", id=event_id, reason="an event id has 64 lower-case hexadecimal digits")
    return event_id


def _priority(given: Priority | str | None) -> Priority:
    try:
        return DEFAULT_PRIORITY if given is None else Priority(given)
    except ValueError as invalid:
        raise error("value_invalid", name="priority", reason="it is not now, next or low") from invalid


def _with_answer(meta: Any, state: AnswerState | str, given: MessageOptions) -> Any:
    """Return the meta with the kind of answer of a reply."""
    if given.get("reply_to") is None or state not in tuple(AnswerState):
        reason = "it needs reply_to, the request that it answers, and is partial, final, busy or failed"
        raise error("value_invalid", name="answer", reason=reason)
    return with_freshness(meta, {ANSWER: AnswerState(state).value})


def _meta(given: MessageOptions) -> str:
    """Return the meta of a message with usage and kind of answer, as JCS text; "" if it is empty."""
    meta: Any = given.get("meta")
    if meta is not None and not isinstance(meta, Mapping):
        raise error("value_invalid", name="meta", reason="it is not an object")
    if (usage := given.get("usage")) is not None:
        meta = with_usage(meta, usage)
    if (state := given.get("answer")) is not None:
        meta = _with_answer(meta, state, given)
    return "" if meta is None else meta_field(dict(meta))


KEPT_REQUESTS = 1_000  # bounds the memory for retries by client_message_id


class Sent(msgspec.Struct, frozen=True):
    """The relay's answer for a message it has stored."""

    #: id of the message; of the first one if it was sent before
    id: str
    seq: int
    client_message_id: str
    #: True if the relay had the message already
    duplicate: bool
    #: readers of the topic whose queue had no room
    not_queued: tuple[NotQueued, ...]
    #: True while the relay still has the content
    history_available: bool
    event: Event


class Sender:
    """Makes one event per request of a node and keeps it, so that a repeated request sends the same event."""

    def __init__(self, composer: Composer, tracer: Tracer | None = None) -> None:
        self.composer = composer
        self._tracer = tracer
        #: (mesh, agent, client_message_id) -> fingerprint of the request, and its event
        self._kept: dict[tuple[str, str, str], tuple[bytes, Event]] = {}

    def traced(self, name: str, given: MessageOptions) -> AbstractContextManager[None]:
        """Trace a call that sends a message, which then carries the span of the call; do nothing without a tracer."""
        return nullcontext() if self._tracer is None else _traced(self._tracer, name, given)

    def event_for(self, request: Request) -> Event:
        """Return the event of a request, for a retry the kept one; raise idempotency_key_reused for another request."""
        key = (request.mesh, request.from_agent, request.client_message_id)
        fingerprint = request.fingerprint
        kept = self._kept.pop(key, None)
        if kept is None:
            kept = (fingerprint, self.composer.seal_and_sign(request))
            while len(self._kept) >= KEPT_REQUESTS:
                del self._kept[next(iter(self._kept))]
        self._kept[key] = kept
        if kept[0] != fingerprint:
            raise error(
                "idempotency_key_reused",
                client_message_id=request.client_message_id,
                conflict="request_fingerprint_mismatch",
                fingerprint_prefix=fingerprint_prefix(fingerprint),
            )
        return kept[1]


class _SendAnswer(msgspec.Struct):
    id: str | None = None
    client_message_id: str = ""
    not_queued: tuple[NotQueued, ...] | None = None
    history_available: bool = True


def sent_from(published: Published, relay: str) -> Sent:
    """Return the answer to a message from the answer to its event, or raise answer_invalid."""
    event = published.event
    try:
        answer = msgspec.convert(published.answer, _SendAnswer)
    except msgspec.ValidationError as invalid:
        raise error("answer_invalid", relay=relay, reason=f"OK is malformed: {invalid}") from invalid
    return Sent(
        id=answer.id or event.id,
        seq=published.seq or 0,
        client_message_id=answer.client_message_id,
        duplicate=published.duplicate,
        not_queued=answer.not_queued or (),
        history_available=answer.history_available,
        event=event,
    )


@contextmanager
def _traced(tracer: Tracer, name: str, given: MessageOptions) -> Iterator[None]:
    parent = valid_traceparent(given.get("traceparent") or current_traceparent())
    span = tracer.start(name, Role.SENDER, parent)
    given["traceparent"] = span.traceparent
    try:
        yield
    except BaseException as failure:
        span.end(failure)
        raise
    span.end()
