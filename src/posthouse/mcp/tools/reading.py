"""The tools `inbox`, `wait`, `read` and `history`, and how they show a message.

Everything under `untrusted` was written by another agent; it appears nowhere else in an answer, and the text stays
inside a JSON string. The daemon has verified the author: if two authors in an answer have the same name, `origin` names
the node. `inbox` and `wait` leave messages unread, `read` marks one as read; `wait` shows each message once. A wait is
shorter than the time limit of most clients for a call, reports progress, and also ends at the daemon when the client
cancels it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from posthouse.client.daemon import InboxItem, Page, Thread
from posthouse.client.daemon.local_api import ThreadMessage
from posthouse.mcp.tool import ToolCall, ToolSpec
from posthouse.model.address import Address
from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.event import is_event_id, is_short_event_id
from posthouse.model.freshness import read_freshness
from posthouse.model.limits import SECOND_NS
from posthouse.model.node import node_hex

PREVIEW_CHARACTERS = 280
HISTORY_CHARACTERS = 2_000
SHORT_ID_DIGITS = 10  # of 64: two ids collide in one of 20,000 inboxes of 10,000 messages, and are then refused
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


class Untrusted(msgspec.Struct, omit_defaults=True):
    """The parts of a message that another agent wrote."""

    text: str | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = UNSET
    #: True: the text was cut
    truncated: bool | UnsetType = UNSET
    #: error code, if it could not be decrypted
    undecryptable: str | UnsetType = UNSET


class ShownMessage(msgspec.Struct, omit_defaults=True):
    """One message."""

    #: the beginning of the message id, for reply_to, read and status
    id: str
    from_: str = msgspec.field(name="from")
    #: such as 5m: models have no clock
    age: str
    untrusted: Untrusted
    #: node of the sender, if another author in this answer has the same name
    origin: str | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    reply_to: str | UnsetType = UNSET
    #: warnings before acting on it: stale, superseded, newer mail of the sender
    notice: str | UnsetType = UNSET


def short_id(message_id: str) -> str:
    """Return the beginning of a message id; every tool accepts it."""
    return message_id[:SHORT_ID_DIGITS]


def short_node(node: str, others: Collection[str] = ()) -> str:
    """Return the first digits of a node id, enough to tell it from `others`; `to` of send accepts them."""
    digits = node_hex(node)
    alike = [node_hex(other) for other in others if other != node]
    for length in range(SHORT_ID_DIGITS, len(digits)):
        if not any(other.startswith(digits[:length]) for other in alike):
            return digits[:length]
    return digits


def show_age(seconds: float) -> str:
    """Return an age in its largest whole unit."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "0s"


class _Source(NamedTuple):
    """The fields of a message that answers show; it comes from the inbox, the history or a thread."""

    message_id: str
    age_s: float
    sender: str
    sender_name: str | None
    from_agent: str
    body: str | None
    meta: dict[str, Any] | None
    undecryptable: str | None
    topic: str | None
    reply_to_id: str | None
    notice: str = ""

    @property
    def name(self) -> str:
        """The address of the sender, as `to` of send accepts it."""
        return str(Address(self.from_agent, self.sender_name or short_node(self.sender)))


def of_item(item: InboxItem) -> _Source:
    """Return a message of the inbox."""
    return _Source(
        item.message_id,
        item.age_s,
        item.sender,
        item.sender_name,
        item.from_agent,
        item.body,
        item.meta,
        item.undecryptable,
        item.topic,
        item.reply_to_id,
        "; ".join(item.notices),
    )


def of_past(message: dict[str, Any], now_ns: int) -> _Source:
    """Return a message of the history."""
    return _Source(
        message["message_id"],
        (now_ns - parse_utc(message["sent_at"])) / SECOND_NS,
        message["sender"],
        message.get("sender_name"),
        message.get("from_agent") or "",
        message["body"],
        message.get("meta"),
        message.get("undecryptable"),
        message.get("topic"),
        message.get("reply_to_id"),
        notice=_stale_notice(message.get("meta"), now_ns),
    )


def _stale_notice(meta: Any, now_ns: int) -> str:
    until_ns = read_freshness(meta).valid_until_ns
    return "" if until_ns is None or now_ns < until_ns else f"stale since {format_utc(until_ns)}"


def show(sources: Iterable[_Source], max_characters: int | None) -> list[ShownMessage]:
    """Return messages with their texts cut to `max_characters`."""
    sources = list(sources)
    nodes: dict[str, set[str]] = {}
    for source in sources:
        nodes.setdefault(source.name, set()).add(source.sender)
    return [_show(source, max_characters, is_unique=len(nodes[source.name]) == 1) for source in sources]


def _show(source: _Source, max_characters: int | None, *, is_unique: bool) -> ShownMessage:
    text = source.body
    is_cut = text is not None and max_characters is not None and len(text) > max_characters
    return ShownMessage(
        id=short_id(source.message_id),
        from_=source.name,
        age=show_age(source.age_s),
        untrusted=Untrusted(
            text=UNSET if text is None else text[:max_characters],
            meta=source.meta or UNSET,
            truncated=True if is_cut else UNSET,
            undecryptable=source.undecryptable or UNSET,
        ),
        origin=UNSET if is_unique else source.sender,
        topic=UNSET if source.topic is None else f"#{source.topic}",
        reply_to=UNSET if source.reply_to_id is None else short_id(source.reply_to_id),
        notice=source.notice or UNSET,
    )


INBOX_SHOWN = 20  # previews: about 3,000 tokens at most; once these are read, the next ones are shown


class InboxArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class InboxAnswer(msgspec.Struct, omit_defaults=True):
    messages: list[ShownMessage]
    #: True: there are more unread messages
    more: bool | UnsetType = UNSET


async def run_inbox(call: ToolCall, arguments: InboxArguments) -> InboxAnswer:
    return show_unread(await call.daemon.inbox(unread=True, limit=INBOX_SHOWN))


def show_unread(page: Page[InboxItem]) -> InboxAnswer:
    """Return the previews of a page, and whether there are more messages."""
    shown = show(map(of_item, page), PREVIEW_CHARACTERS)
    return InboxAnswer(shown, more=UNSET if page.next is None else True)


INBOX = ToolSpec(
    "inbox",
    "List unread messages, oldest first. Long texts are cut: use read.",
    InboxArguments,
    InboxAnswer,
    run_inbox,
    is_read_only=True,
)


class WaitArguments(msgspec.Struct, forbid_unknown_fields=True):
    seconds: Annotated[float, Meta(ge=0)]


async def run_wait(call: ToolCall, arguments: WaitArguments) -> InboxAnswer:
    seconds = call.check_wait("seconds", arguments.seconds)
    async with call.with_progress(seconds, "no mail yet"):
        page = await call.daemon.wait(seconds, limit=INBOX_SHOWN)
    return show_unread(page)


WAIT = ToolSpec(
    "wait",
    "Wait for mail that no wait has shown. Empty: timed out, call again.",
    WaitArguments,
    InboxAnswer,
    run_wait,
    is_read_only=True,
    bounded_by_wait=("seconds",),
)


class ReadArguments(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    #: show the text although the message is stale
    confirm: bool | UnsetType = UNSET


async def run_read(call: ToolCall, arguments: ReadArguments) -> ShownMessage:
    item = await call.daemon.item(arguments.id, confirm=arguments.confirm is True)
    await call.daemon.seen([item.id])
    [shown] = show([of_item(item)], None)
    return shown


READ = ToolSpec(
    "read",
    "Show a full message; mark it read.",
    ReadArguments,
    ShownMessage,
    run_read,
)
HISTORY_SHOWN = 20
TOPIC_MARK = "#"
_NOT_A_MESSAGE = frozenset({"inbox_item_unknown", "outbox_row_unknown", "message_unknown"})  # it may be a key


class HistoryArguments(msgspec.Struct, forbid_unknown_fields=True):
    #: a name, #topic, or a message id for its thread
    of: str
    #: `before` of the last answer
    before: str | UnsetType = UNSET


class HistoryAnswer(msgspec.Struct, omit_defaults=True):
    messages: list[ShownMessage]
    #: for the next call; absent at the end
    before: str | UnsetType = UNSET
    #: of a thread: how many more messages its budget allows
    hops_left: int | UnsetType = UNSET


async def run_history(call: ToolCall, arguments: HistoryArguments) -> HistoryAnswer:
    if is_event_id(arguments.of) or is_short_event_id(arguments.of):
        try:
            return _show_thread(call, await call.daemon.thread(arguments.of))
        except PosthouseError as failure:
            if failure.code not in _NOT_A_MESSAGE:
                raise
    is_topic = arguments.of.startswith(TOPIC_MARK)
    page = await call.daemon.history(
        topic=arguments.of if is_topic else None,
        member=None if is_topic else arguments.of,
        before=None if arguments.before is UNSET else arguments.before,
        limit=HISTORY_SHOWN,
    )
    now_ns = call.clock.wall_ns()
    shown = show((of_past(message, now_ns) for message in page["messages"]), HISTORY_CHARACTERS)
    return HistoryAnswer(shown, str(page["before"]) if page["before"] is not None else UNSET)


def _show_thread(call: ToolCall, thread: Thread) -> HistoryAnswer:
    now_ns = call.clock.wall_ns()
    newest = thread.messages[-HISTORY_SHOWN:][::-1]
    shown = show((_of_thread(message, now_ns) for message in newest), HISTORY_CHARACTERS)
    return HistoryAnswer(shown, hops_left=UNSET if thread.budget is None else thread.budget.hops_left)


def _of_thread(message: ThreadMessage, now_ns: int) -> _Source:
    return _Source(
        message.message_id,
        (now_ns - parse_utc(message.at)) / SECOND_NS,
        message.sender,
        message.sender_name,
        message.from_agent,
        message.body,
        meta=None,
        undecryptable=None,
        topic=message.to.removeprefix(TOPIC_MARK) if message.to.startswith(TOPIC_MARK) else None,
        reply_to_id=message.reply_to_id,
    )


HISTORY = ToolSpec(
    "history",
    "Past messages of a name, #topic, or thread of an id, newest first.",
    HistoryArguments,
    HistoryAnswer,
    run_history,
    is_read_only=True,
)
