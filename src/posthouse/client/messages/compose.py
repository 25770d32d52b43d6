"""Making messages: a request in, a sealed and signed event out that can be sent again byte for byte.

Direct messages are sealed for their reader unless asked otherwise; topics are in the clear. The request itself has a
fingerprint, over what the caller gave: it tells a retry from another request where the sealed bytes cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from posthouse.client.sealing import seal_content
from posthouse.client.signing import Signer, with_mesh
from posthouse.model.errors import error
from posthouse.model.event import Event
from posthouse.model.event_structure import is_event_id
from posthouse.model.fingerprint import DEFAULT_PRIORITY, DestinationKind, Priority, fingerprint, meta_field
from posthouse.model.ids import Minter
from posthouse.model.kinds import MESSAGE
from posthouse.model.mesh_budget import MeshBudget, encode_mesh_budget
from posthouse.model.message import check_body, validate_client_message_id
from posthouse.model.node import node_hex, validate_node_id
from posthouse.model.subjects import validate_topic

TOPIC_MARK = "#"


class MessageOptions(TypedDict, total=False):
    """What can be said about a message beside where it goes and its body."""

    #: the sender's own id, at most 255 bytes; minted when it is absent
    client_message_id: str | None
    #: id of the message it answers
    reply_to: str | None
    #: now, next (the default) or low; for the reader, never reorders
    priority: Priority | str | None
    #: an object, in the clear; meta.usage is what cost figures come from
    meta: Mapping[str, Any] | None
    budget: MeshBudget | None
    #: members (names or node ids) it speaks of
    mentions: Sequence[str]
    #: False leaves a direct message in the clear
    is_sealed: bool


class Request(NamedTuple):
    """What a caller wants to say, checked; `node` or `topic` is where it goes."""

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

    @property
    def fingerprint(self) -> bytes:
        """The request_fingerprint: over the plaintext."""
        kind = DestinationKind.DM if self.node is not None else DestinationKind.TOPIC
        ref = node_hex(self.node) if self.node is not None else str(self.topic)
        return fingerprint(kind, ref, self.reply_to, self.priority, self.meta, self.body.encode())


class Composer:
    """Makes the messages of one node."""

    def __init__(self, signer: Signer, minter: Minter) -> None:
        self._signer = signer
        self._minter = minter

    def request(self, destination: str, body: str, mesh: str, given: MessageOptions) -> Request:
        """Check a request, or raise what is wrong with it; `destination` is a node id or #topic."""
        check_body(body.encode())
        is_topic = destination.startswith(TOPIC_MARK)
        return Request(
            mesh=mesh,
            node=None if is_topic else validate_node_id(destination),
            topic=validate_topic(destination[len(TOPIC_MARK) :]) if is_topic else None,
            body=body,
            client_message_id=self._client_message_id(given.get("client_message_id")),
            reply_to=_checked_id(given.get("reply_to")),
            priority=_priority(given.get("priority")),
            meta=_meta(given.get("meta")),
            budget=given.get("budget"),
            mentions=tuple(dict.fromkeys(validate_node_id(node) for node in given.get("mentions", ()))),
            is_sealed=given.get("is_sealed", True) and not is_topic,
        )

    def freeze(self, request: Request) -> Event:
        """Seal and sign a request; each call makes other bytes, so keep the event for its retries."""
        content, tags = self._content(request)
        return self._signer.sign(MESSAGE, content, with_mesh([*tags, *_tags(request)], request.mesh))

    def _client_message_id(self, given: str | None) -> str:
        return validate_client_message_id(self._minter.mint() if given is None else given)

    def _content(self, request: Request) -> tuple[str, list[tuple[str, str]]]:
        if request.topic is not None:
            return request.body, [("t", request.topic)]
        assert request.node is not None
        if request.is_sealed:
            return seal_content(self._signer.key, [request.node], request.body)
        return request.body, [("p", request.node)]


def _tags(request: Request) -> list[tuple[str, str]]:
    tags = [("c", request.client_message_id)]
    if request.reply_to is not None:
        tags.append(("e", request.reply_to))
    if request.priority is not DEFAULT_PRIORITY:
        tags.append(("priority", request.priority.value))
    if request.meta:
        tags.append(("meta", request.meta))
    if request.budget is not None:
        tags.append(("budget", encode_mesh_budget(request.budget)))
    return tags + [("mention", node) for node in request.mentions]


def _checked_id(event_id: str | None) -> str | None:
    if event_id is not None and not is_event_id(event_id):
        raise error("id_invalid", id=event_id, reason="an event id has 64 lower-case hexadecimal digits")
    return event_id


def _priority(given: Priority | str | None) -> Priority:
    try:
        return DEFAULT_PRIORITY if given is None else Priority(given)
    except ValueError as fault:
        raise error("value_invalid", name="priority", reason="it is not now, next or low") from fault


def _meta(meta: Any) -> str:
    if meta is not None and not isinstance(meta, Mapping):
        raise error("value_invalid", name="meta", reason="it is not an object")
    return meta_field(None if meta is None else dict(meta))
