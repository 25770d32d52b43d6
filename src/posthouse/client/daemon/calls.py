"""Every call of the daemon's local API: one function each, arguments in, a `Call` out.

A Call is a value: both clients, the blocking and the async one, can execute it, and it decodes its own answer.
Repeating a call with `is_repeatable` has no further effect; only such a call is sent again when the connection ends
before the answer. A send always carries a client_message_id, minted here before the first attempt if the caller gave
none, so a second attempt is the same message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from posthouse.client.daemon import local_api as api
from posthouse.client.failures import error_from
from posthouse.model.clock import system_clock
from posthouse.model.envelope import Usage
from posthouse.model.errors import ERROR_CODES, PosthouseError, error
from posthouse.model.lock_api import LockGrant
from posthouse.model.ulid import UlidGenerator
from posthouse.model.usage import with_usage

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
    #: sent as JSON; None for no body
    body: Any = None
    is_repeatable: bool = True
    #: how long the call asks the daemon to hold its answer
    wait_s: float = 0.0

    @property
    def target(self) -> str:
        """Return path and query as on the wire."""
        given = [(name, _text(value)) for name, value in self.query.items() if value is not None]
        return f"{self.path}?{urlencode(given, quote_via=quote, safe='')}" if given else self.path

    def encode(self) -> bytes | None:
        """Return the body of the request."""
        return None if self.body is None else msgspec.json.encode(self.body)

    def answer(self, status: int, data: bytes, where: str) -> T:
        """Return the value of an answer, or raise its refusal; `where` names the daemon in the error."""
        if not 200 <= status < 300:
            raise refusal(status, data, where)
        try:
            return self.read(msgspec.json.decode(data))
        except (ValueError, KeyError, TypeError) as invalid:
            raise error("daemon_answer_invalid", daemon=where, reason=f"{self.path}: {invalid}") from invalid


def as_struct(kind: type[T]) -> Callable[[Any], T]:
    """Return a reader of an answer that is a struct."""
    return lambda value: msgspec.convert(value, kind)


def as_page(kind: type[T]) -> Callable[[Any], api.Page[T]]:
    """Return a reader of an answer with a page of items."""
    return lambda value: api.Page(
        msgspec.convert(value["items"], list[kind]),  # type: ignore[valid-type]
        msgspec.convert(value.get("next"), str | None),
        msgspec.convert(value.get("mark"), str | None),
    )


def as_object(value: Any) -> dict[str, Any]:
    """Return an answer that is an object without a struct."""
    return msgspec.convert(value, dict[str, Any])


def drop_none(**given: Any) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in given.items() if value is not None}


def refusal(status: int, data: bytes, where: str) -> PosthouseError:
    """Return the error in an answer {error, hint, ...}."""
    try:
        answer = msgspec.json.decode(data, type=dict[str, Any])
    except ValueError:
        answer = {}
    code = answer.pop("error", None)
    if not isinstance(code, str):
        return error("daemon_answer_invalid", daemon=where, reason=f"status {status} without an error")
    if code not in ERROR_CODES:
        return error_from(answer | {"code": code, "status": status}, where)
    fields = {name: value for name, value in answer.items() if name not in _FIXED}
    return error(code, hint=str(answer["hint"]) if answer.get("hint") else None, **fields)


def _text(value: str | int | float | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_MINTER = UlidGenerator(system_clock())
_COUNT: Callable[[Any], int] = lambda value: int(value["count"])  # noqa: E731 - a name for the answer


class SendOptions(TypedDict, total=False):
    """Optional arguments of a message."""

    #: now, next (the default) or low; a hint for the reader, which never reorders messages
    priority: str | None
    #: an object, never sealed
    meta: Mapping[str, Any] | None
    #: model, tokens and cost of the message; it becomes meta.usage, which cost reports read
    usage: Usage | Mapping[str, Any] | None
    #: event id of the message it answers
    reply_to_id: str | None
    #: members that the message mentions
    mentions: Sequence[str] | None
    #: the sender's own id; the same id and request is one message, however often it is sent
    client_message_id: str | None
    #: an earlier message to the same recipient that this one replaces while it is unread
    supersedes: str | None
    #: a time (UTC, as text) after which a recipient that has not read the message sees its text only if it confirms
    valid_until: str | None
    #: True if the message only reports a failure: it wakes no agent
    failure: bool | None
    #: program through which a person sends it, for the journal
    via: str | None
    #: the kind of answer that a reply gives to its request: partial, final, busy or failed
    answer: str | None


class MailConditions(TypedDict, total=False):
    """Conditions on messages of the inbox; all must hold."""

    #: an inbox id, a message id or a time; only later messages
    after: str | None
    #: as `after`; only earlier messages
    before: str | None
    topic: str | None
    #: a member's name or node id
    sender: str | None
    #: words and "phrases" that the text must have
    search: str | None
    #: any message of a thread; only messages of this thread
    thread: str | None


class InboxFilter(MailConditions, total=False):
    """Selects a page of the inbox."""

    unread: bool | None
    #: "oldest" or "newest" first; by default oldest for unread mail and mail after a message, else newest
    order: str | None
    limit: int | None
    #: only mail after the mark of this reader; see `consume` and `wait`
    reader: str | None


class OutboxQuery(TypedDict, total=False):
    """Selects rows of the outbox; all conditions must hold."""

    #: pending, inflight, done, dead or aborted
    status: str | None
    #: a member's name or node id, or #topic
    to: str | None
    #: a row by its id, client_message_id or message id; only later rows
    after: str | None
    #: as `after`; only earlier rows
    before: str | None
    #: "oldest" or "newest" first; by default newest, and oldest after a row
    order: str | None
    limit: int | None


class ProfileFields(TypedDict, total=False):
    """The profile that other members see; absent fields stay as they are."""

    summary: str | None
    #: idle, working or dnd
    status: str | None
    visible: bool | None
    avatar: str | None
    title: str | None
    bio: str | None
    capabilities: Sequence[str] | None


class AgentFields(TypedDict, total=False):
    """The description of an agent; absent fields stay as they are."""

    #: such as claude-code
    program: str | None
    #: directory that the program works in; shown on this host only
    project: str | None
    summary: str | None
    #: what other agents may ask it for
    capabilities: Sequence[str] | None
    #: idle, working or dnd
    status: str | None
    #: False: senders do not learn when the agent's program was given a message
    receipts: bool | None


# Messages


def send(to: str, message: str, given: SendOptions) -> Call[api.Accepted]:
    return _sending("/v1/send", {"to": to, "message": message}, given)


def post(topic: str, message: str, given: SendOptions) -> Call[api.Accepted]:
    return _sending("/v1/topic/post", {"topic": topic, "message": message}, given)


def message(message_id: str) -> Call[dict[str, Any]]:
    return Call("GET", f"/v1/messages/{_part(message_id)}", as_object)


def history(topic: str | None, member: str | None, before: str | int | None, limit: int | None) -> Call[dict[str, Any]]:
    return Call("GET", "/v1/history", as_object, {"topic": topic, "with": member, "before": before, "limit": limit})


# Inbox


def inbox(given: InboxFilter, wait_s: float = 0.0) -> Call[api.Page[api.InboxItem]]:
    query: dict[str, Any] = _selection(given)
    query |= {name: given.get(name) for name in ("unread", "order", "limit", "reader")}
    return Call("GET", "/v1/inbox", as_page(api.InboxItem), query | {"wait_s": wait_s or None}, wait_s=wait_s)


def item(row_id: str, *, is_confirmed: bool = False) -> Call[api.InboxItem]:
    return Call("GET", f"/v1/inbox/{_part(row_id)}", as_struct(api.InboxItem), {"confirm": is_confirmed or None})


def seen(ids: Sequence[str]) -> Call[int]:
    return Call("POST", "/v1/inbox/seen", _COUNT, body={"ids": list(ids)})


def thread(message_id: str) -> Call[api.Thread]:
    return Call("GET", f"/v1/threads/{_part(message_id)}", as_struct(api.Thread))


def threads(before: str | None, limit: int | None) -> Call[api.Page[api.ThreadSummary]]:
    return Call("GET", "/v1/threads", as_page(api.ThreadSummary), {"before": before, "limit": limit})


def traffic(since: str | None) -> Call[api.Traffic]:
    return Call("GET", "/v1/traffic", as_struct(api.Traffic), {"since": since})


def move_mark(mark: str, ids: Sequence[str]) -> Call[dict[str, Any]]:
    return Call("POST", "/v1/inbox/mark", as_object, body={"mark": mark, "ids": list(ids)})


def seen_all(given: MailConditions) -> Call[int]:
    return Call("POST", "/v1/inbox/seen", _COUNT, body=drop_none(**_selection(given)) | {"all": True})


def _selection(given: MailConditions) -> dict[str, Any]:
    """Return the conditions of a filter under their names in the API."""
    named = {name: given.get(name) for name in ("after", "before", "topic", "search", "thread")}
    return named | {"from": given.get("sender")}


# Outbox


def outbox(given: OutboxQuery) -> Call[api.Page[api.OutboxRow]]:
    return Call("GET", "/v1/outbox", as_page(api.OutboxRow), drop_none(**given))


def requeue(
    row_id: str, new_client_message_id: str | None, text: str | None, via: str | None = None
) -> Call[api.RequeuedRow]:
    body = drop_none(id=row_id, new_client_message_id=new_client_message_id, message=text, via=via)
    return Call("POST", "/v1/outbox/requeue", as_struct(api.RequeuedRow), body=body, is_repeatable=False)


def outbox_row(row_id: str) -> Call[api.OutboxChain]:
    return Call("GET", f"/v1/outbox/{_part(row_id)}", _read_chain)


def drop(row_id: str, via: str | None = None) -> Call[api.RequeuedRow]:
    body = drop_none(id=row_id, via=via)
    return Call("POST", "/v1/outbox/drop", as_struct(api.RequeuedRow), body=body, is_repeatable=False)


def withdraw(message_id: str) -> Call[dict[str, Any]]:
    return Call("POST", "/v1/messages/withdraw", as_object, body={"id": message_id})


# Topics


def topics() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/topic/list", as_object)


def topic_change(verb: str, topic: str) -> Call[dict[str, Any]]:
    return Call("POST", f"/v1/topic/{verb}", as_object, body={"topic": topic}, is_repeatable=verb != "create")


# Locks


def lock_acquire(
    resource: str, lease_ms: int, wait_ms: int | None, request_id: str | None, mesh: str | None
) -> Call[LockGrant]:
    request = request_id or _MINTER.mint()
    body = drop_none(resource=resource, lease_ms=lease_ms, wait_ms=wait_ms, request_id=request, mesh=mesh)
    return Call("POST", "/v1/locks/acquire", as_struct(LockGrant), body=body, wait_s=(wait_ms or 0) / 1000)


def lock_renew(resource: str, token: int, lease_ms: int, mesh: str | None) -> Call[LockGrant]:
    body = drop_none(resource=resource, token=token, lease_ms=lease_ms, mesh=mesh)
    return Call("POST", "/v1/locks/renew", as_struct(LockGrant), body=body)


def lock_release(resource: str, token: int, mesh: str | None) -> Call[dict[str, Any]]:
    body = drop_none(resource=resource, token=token, mesh=mesh)
    return Call("POST", "/v1/locks/release", as_object, body=body, is_repeatable=False)


# Agents of this host


def agents() -> Call[api.Page[api.Agent]]:
    return Call("GET", "/v1/agents", as_page(api.Agent))


def register(name: str, pid: int | None, given: AgentFields) -> Call[api.Agent]:
    return Call("POST", "/v1/agents", as_struct(api.Agent), body=drop_none(name=name, pid=pid, **given))


def rename_agent(name: str, to: str) -> Call[api.Agent]:
    body = {"name": name, "to": to}
    return Call("POST", "/v1/agents/rename", as_struct(api.Agent), body=body, is_repeatable=False)


def retire_agent(name: str, reason: str | None) -> Call[api.Agent]:
    body = drop_none(name=name, reason=reason)
    return Call("POST", "/v1/agents/retire", as_struct(api.Agent), body=body, is_repeatable=False)


def pause_agents(names: Sequence[str], program: str | None, until: str, reason: str) -> Call[api.Page[api.Agent]]:
    body = drop_none(names=list(names) or None, program=program, until=until, reason=reason)
    return Call("POST", "/v1/agents/pause", as_page(api.Agent), body=body)


def resume_agents(names: Sequence[str], program: str | None) -> Call[api.Page[api.Agent]]:
    body = drop_none(names=list(names) or None, program=program)
    return Call("POST", "/v1/agents/resume", as_page(api.Agent), body=body)


def reserve(
    paths: Sequence[str], for_s: float, note: str, mode: str, *, is_repo: bool
) -> Call[api.Page[api.Reservation]]:
    body = {"paths": list(paths), "for_s": for_s, "note": note, "mode": mode, "repo": is_repo}
    return Call("POST", "/v1/reservations", as_page(api.Reservation), body=body)


def reservations(path: str | None) -> Call[api.Page[api.Reservation]]:
    return Call("GET", "/v1/reservations", as_page(api.Reservation), query={"path": path})


def release(paths: Sequence[str], *, is_forced: bool, via: str | None = None) -> Call[api.Page[api.Reservation]]:
    body = drop_none(paths=list(paths) or None, force=is_forced, via=via)
    return Call("DELETE", "/v1/reservations", as_page(api.Reservation), body=body)


def set_on_mail(name: str, command: str | None) -> Call[dict[str, Any]]:
    return Call("POST", "/v1/agents/on-mail", as_object, body=drop_none(name=name, command=command))


def event_hooks(hook: str | None = None, action: str | None = None) -> Call[dict[str, Any]]:
    if hook is None:
        return Call("GET", "/v1/event-hooks", as_object)
    return Call("POST", "/v1/event-hooks/parked", as_object, body={"hook": hook, "action": action})


# The mesh and the daemon


def peers() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/peers", as_object)


def profile(given: ProfileFields) -> Call[dict[str, Any]]:
    return Call("POST", "/v1/profile", as_object, body=drop_none(**given))


def health() -> Call[api.Health]:
    return Call("GET", "/v1/health", as_struct(api.Health))


def meshes() -> Call[list[api.MeshState]]:
    return Call("GET", "/v1/meshes", lambda value: msgspec.convert(value["items"], list[api.MeshState]))


def add_mesh(mesh: str, relay: str | None) -> Call[api.Health]:
    return Call("POST", "/v1/meshes", as_struct(api.Health), body=drop_none(mesh=mesh, relay=relay))


def remove_mesh(mesh: str) -> Call[dict[str, Any]]:
    return Call("DELETE", f"/v1/meshes/{_part(mesh)}", as_object)


def rotate_key(mesh: str | None) -> Call[dict[str, Any]]:
    return Call("POST", "/v1/key/rotate", as_object, body=drop_none(mesh=mesh))


def version() -> Call[api.DaemonVersion]:
    return Call("GET", "/v1/version", as_struct(api.DaemonVersion))


def _sending(path: str, body: dict[str, Any], given: SendOptions) -> Call[api.Accepted]:
    options = {**given, "meta": with_usage(given.get("meta"), given.get("usage")), "usage": None}
    options["client_message_id"] = options.get("client_message_id") or _MINTER.mint()
    return Call("POST", path, as_struct(api.Accepted), body=body | drop_none(**options))


def _read_chain(value: Any) -> api.OutboxChain:
    return api.OutboxChain(msgspec.convert(value, api.OutboxRow), msgspec.convert(value["chain"], list[api.OutboxRow]))


def _part(text: str) -> str:
    return quote(text, safe="")
