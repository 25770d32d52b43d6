"""Every call of the daemon's local API: one function each, arguments in, a `Call` out.

A Call is a value that both clients, the blocking and the async one, can execute and whose answer it decodes.
`is_repeatable` says that doing it twice is the same as once: only such a call is sent again when a connection ends
before the answer. A send always carries a client_message_id, minted here before the first attempt if the caller gave
none, so that a second attempt is the same message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from posthouse.client.daemon.local_api import (
    Accepted,
    DaemonVersion,
    Health,
    InboxItem,
    OutboxChain,
    OutboxRow,
    RequeuedRow,
)
from posthouse.client.failures import error_from
from posthouse.model.api import LockGrant
from posthouse.model.clock import system_clock
from posthouse.model.errors import ERROR_CODES, PosthouseError, error
from posthouse.model.ulid import Minter

T = TypeVar("T")
_FIXED = frozenset({"hint", "code", "detail"})
Parameters = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request to the daemon."""

    method: str
    path: str
    #: turns the decoded answer into its value
    read: Callable[[Any], T]
    query: Parameters = field(default_factory=dict)
    #: what is sent as JSON; None for nothing
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True
    #: how long the daemon may hold the answer back because it was asked to
    wait_s: float = 0.0

    @property
    def target(self) -> str:
        """Return path and query as they go over the wire."""
        given = [(name, _text(value)) for name, value in self.query.items() if value is not None]
        return f"{self.path}?{urlencode(given, quote_via=quote, safe='')}" if given else self.path

    def encode(self) -> bytes | None:
        """Return the body of the request."""
        return None if self.body is None else msgspec.json.encode(self.body)

    def answer(self, status: int, data: bytes, where: str) -> T:
        """Return the value of an answer, or raise the refusal it stands for."""
        if not 200 <= status < 300:
            raise refusal(status, data, where)
        try:
            return self.read(msgspec.json.decode(data))
        except (ValueError, KeyError, TypeError) as fault:
            raise error("daemon_answer_invalid", daemon=where, reason=f"{self.path}: {fault}") from fault


def struct(kind: type[T]) -> Callable[[Any], T]:
    """Read an answer as a struct."""
    return lambda value: msgspec.convert(value, kind)


def items(kind: type[T], name: str = "items") -> Callable[[Any], list[T]]:
    """Read the list an answer carries."""
    return lambda value: msgspec.convert(value[name], list[kind])  # type: ignore[valid-type]


def plain(value: Any) -> dict[str, Any]:
    """Read an answer as the object it is."""
    return msgspec.convert(value, dict[str, Any])


def without_none(**given: Any) -> dict[str, Any]:
    """Return what was given, absent where it is None."""
    return {name: value for name, value in given.items() if value is not None}


def refusal(status: int, data: bytes, where: str) -> PosthouseError:
    """Return the error of an answer {error, hint, ...}."""
    try:
        told = msgspec.json.decode(data, type=dict[str, Any])
    except ValueError:
        told = {}
    code = told.pop("error", None)
    if not isinstance(code, str):
        return error("daemon_answer_invalid", daemon=where, reason=f"status {status} without an error")
    if code not in ERROR_CODES:
        return error_from(told | {"code": code, "status": status}, where)
    fields = {name: value for name, value in told.items() if name not in _FIXED}
    return error(code, hint=str(told["hint"]) if told.get("hint") else None, **fields)


def _text(value: str | int | float | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


IDEMPOTENCY_HEADER = "Idempotency-Key"
_MINTER = Minter(system_clock())


class SendOptions(TypedDict, total=False):
    """What can be said about a message beside where it goes and its text."""

    #: now, next (the default) or low; for the reader, never reorders
    priority: str | None
    #: an object, in the clear
    meta: Mapping[str, Any] | None
    #: event id of the message it answers
    reply_to_id: str | None
    #: members it speaks of
    mentions: Sequence[str] | None
    #: the sender's own id; the same id and request is the same message, however often it is sent
    client_message_id: str | None


class InboxFilter(TypedDict, total=False):
    """Which mail; all conditions must hold."""

    #: only what came after this row, by its id
    since: str | None
    topic: str | None
    #: a member's name or node id
    sender: str | None
    unread: bool | None
    limit: int | None


class ProfileFields(TypedDict, total=False):
    """What other members see of this node; absent fields stay as they are."""

    summary: str | None
    #: idle, working or dnd
    status: str | None
    visible: bool | None
    avatar: str | None
    title: str | None
    bio: str | None
    capabilities: Sequence[str] | None


# Messages


def send(to: str, message: str, given: SendOptions) -> Call[Accepted]:
    return _sending("/v1/send", {"to": to, "message": message}, given)


def post(topic: str, message: str, given: SendOptions) -> Call[Accepted]:
    return _sending("/v1/topic/post", {"topic": topic, "message": message}, given)


def message(message_id: str) -> Call[dict[str, Any]]:
    return Call("GET", f"/v1/messages/{_part(message_id)}", plain)


def history(topic: str | None, member: str | None, before: str | int | None, limit: int | None) -> Call[dict[str, Any]]:
    return Call("GET", "/v1/history", plain, {"topic": topic, "with": member, "before": before, "limit": limit})


# Inbox


def inbox(given: InboxFilter, wait_s: float = 0.0) -> Call[list[InboxItem]]:
    query = {
        "since": given.get("since"),
        "topic": given.get("topic"),
        "from": given.get("sender"),
        "unread": given.get("unread"),
        "limit": given.get("limit"),
        "wait_s": wait_s or None,
    }
    return Call("GET", "/v1/inbox", items(InboxItem), query, wait_s=wait_s)


def item(row_id: str) -> Call[InboxItem]:
    return Call("GET", f"/v1/inbox/{_part(row_id)}", struct(InboxItem))


def seen(ids: Sequence[str]) -> Call[int]:
    return Call("POST", "/v1/inbox/seen", lambda value: int(value["count"]), body={"ids": list(ids)})


# Outbox


def outbox(status: str | None, limit: int | None) -> Call[list[OutboxRow]]:
    return Call("GET", "/v1/outbox", items(OutboxRow), {"status": status, "limit": limit})


def requeue(row_id: str, new_client_message_id: str | None, text: str | None) -> Call[RequeuedRow]:
    body = without_none(id=row_id, new_client_message_id=new_client_message_id, message=text)
    return Call("POST", "/v1/outbox/requeue", struct(RequeuedRow), body=body, is_repeatable=False)


def outbox_row(row_id: str) -> Call[OutboxChain]:
    return Call("GET", f"/v1/outbox/{_part(row_id)}", _read_chain)


def drop(row_id: str) -> Call[RequeuedRow]:
    return Call("POST", "/v1/outbox/drop", struct(RequeuedRow), body={"id": row_id}, is_repeatable=False)


# Topics


def topics() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/topic/list", plain)


def topic_change(verb: str, topic: str) -> Call[dict[str, Any]]:
    return Call("POST", f"/v1/topic/{verb}", plain, body={"topic": topic}, is_repeatable=verb != "create")


# Locks


def lock_acquire(
    resource: str, lease_ms: int, wait_ms: int | None, request_id: str | None, mesh: str | None
) -> Call[LockGrant]:
    wanted = request_id or _MINTER.mint()
    body = without_none(resource=resource, lease_ms=lease_ms, wait_ms=wait_ms, request_id=wanted, mesh=mesh)
    return Call("POST", "/v1/locks/acquire", struct(LockGrant), body=body, wait_s=(wait_ms or 0) / 1000)


def lock_renew(resource: str, token: int, lease_ms: int, mesh: str | None) -> Call[LockGrant]:
    body = without_none(resource=resource, token=token, lease_ms=lease_ms, mesh=mesh)
    return Call("POST", "/v1/locks/renew", struct(LockGrant), body=body)


def lock_release(resource: str, token: int, mesh: str | None) -> Call[dict[str, Any]]:
    body = without_none(resource=resource, token=token, mesh=mesh)
    return Call("POST", "/v1/locks/release", plain, body=body, is_repeatable=False)


# The mesh and the daemon


def peers() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/peers", plain)


def profile(given: ProfileFields) -> Call[dict[str, Any]]:
    return Call("POST", "/v1/profile", plain, body=without_none(**given))


def health() -> Call[Health]:
    return Call("GET", "/v1/health", struct(Health))


def version() -> Call[DaemonVersion]:
    return Call("GET", "/v1/version", struct(DaemonVersion))


def _sending(path: str, body: dict[str, Any], given: SendOptions) -> Call[Accepted]:
    options: dict[str, Any] = dict(given)
    options["client_message_id"] = options.get("client_message_id") or _MINTER.mint()
    return Call("POST", path, struct(Accepted), body=body | without_none(**options))


def _read_chain(value: Any) -> OutboxChain:
    return OutboxChain(msgspec.convert(value, OutboxRow), msgspec.convert(value["chain"], list[OutboxRow]))


def _part(text: str) -> str:
    return quote(text, safe="")
