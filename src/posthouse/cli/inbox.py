"""`posthouse inbox` and `posthouse tail`: list, await, show and mark the mail of this host, and follow its events.

An agent uses `wait` to sleep until mail arrives: it marks the mail it shows as seen unless --peek is given, and it
survives a restart of the daemon. `tail` reconnects and continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.completers import complete_members, complete_topics
from posthouse.cli.direct import THROUGH_DAEMON, DirectReading, receive
from posthouse.cli.options import (
    DEFAULT_DAEMON,
    DEFAULT_RELAY,
    DaemonOptions,
    RelayOptions,
    note_membership,
    parse_wait,
    with_mesh,
)
from posthouse.cli.output import PLAIN, Output, indented, one_line, short_node, shown_body, table
from posthouse.model.address import Address
from posthouse.model.errors import PosthouseError, error
from posthouse.model.freshness import age_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.client.daemon import DaemonEvent, InboxItem, Thread
    from posthouse.client.daemon.calls import MailConditions


_GROUP = Group("Filter", sort_key=3)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class MailFilter:
    """Selects the mail that meets every given condition."""

    sender: Annotated[
        str | None, Parameter(name="--from", completer=complete_members, help="Only mail from this member.")
    ] = None
    topic: Annotated[str | None, Parameter(completer=complete_topics, help="Only mail in this topic.")] = None
    after: Annotated[str | None, Parameter(help="Only mail after this id or time (2026-01-31T09:30:00Z).")] = None
    before: Annotated[str | None, Parameter(help="Only mail before this id or time.")] = None
    thread: Annotated[str | None, Parameter(help="Only mail in the thread of this message.")] = None
    search: Annotated[str | None, Parameter(help='Only mail with these words, "phrases" or prefixes*.')] = None

    def filter(self) -> MailConditions:
        """Return the conditions in the form of the daemon client."""
        topic = None if self.topic is None else self.topic.removeprefix("#")
        return {
            "sender": self.sender,
            "topic": topic,
            "after": self.after,
            "before": self.before,
            "search": self.search,
            "thread": self.thread,
        }

    @property
    def is_empty(self) -> bool:
        """True if no condition is given."""
        return all(value is None for value in self.filter().values())


#: The default of every command's `mail_filter`.
ANY_MAIL = MailFilter()
Limit = Annotated[int, Parameter(validator=Number(gte=1, lte=1000), group=_GROUP, help="Maximum number to show.")]


def sender_name(item: InboxItem) -> str:
    """Return the address of the sender; a host without a name is shown by the beginning of its node id."""
    return str(Address(item.from_agent, item.sender_name or short_node(item.sender)))


def mail_table(items: Sequence[InboxItem]) -> RenderableType:
    """Return mail as a table."""
    rows = [
        (item.id, age_text(item.age_s), sender_name(item), f"#{item.topic}" if item.topic else "", _text(item))
        for item in items
    ]
    return table(("id", "age", "from", "topic", "text"), rows)


def _text(item: InboxItem) -> str:
    conflict = () if item.conflicts_with is None else (f"conflicts with {item.conflicts_with}",)
    notices = "; ".join((*conflict, *item.notices))
    return (f"({notices}) " if notices else "") + _body(item)


def _body(item: InboxItem) -> str:
    if item.body is not None or item.undecryptable is not None:
        return shown_body(item.body)
    return "(withdrawn)" if item.is_withdrawn else "(withheld: `posthouse inbox show ID --confirm` shows it)"


def mail_lines(item: InboxItem) -> str:
    """Return one message with all its fields."""
    named = {
        "id": item.id,
        "message": item.message_id,
        "from": f"{sender_name(item)}  {item.sender}",
        "topic": f"#{item.topic}" if item.topic else None,
        "answers": item.reply_to_id,
        "conflict": _conflict(item),
        "meta": item.meta or None,
        "sent": item.sent_at,
        "received": item.received_at,
        "age": age_text(item.age_s),
        "seen": item.seen_at,
        "notice": "; ".join(item.notices) or None,
        "text": _body(item),
    }
    return "\n".join(f"{name:<9}{indented(str(value), 9)}" for name, value in named.items() if value is not None)


def _conflict(item: InboxItem) -> str | None:
    if item.conflicts_with is None:
        return None
    return f"{item.conflicts_with} is another message of this sender with the same id {item.client_message_id}"


def mail(
    *,
    unread: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Only mail that is not marked as seen, oldest first.")
    ] = False,
    order: Annotated[
        Literal["oldest", "newest"] | None,
        Parameter(help="Which to show first; by default oldest with --unread or --after, else newest."),
    ] = None,
    mail_filter: MailFilter = ANY_MAIL,
    limit: Limit = 100,
    reading: DirectReading = THROUGH_DAEMON,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List mail without marking it as seen: unread mail oldest first, all mail newest first.

    If there is more, the last line says how to continue. With --direct the command reads the queue at the relay itself:
    it shows messages as they arrive, until Ctrl-C, and confirms each one after it is shown.

    For example:

        posthouse inbox
        posthouse inbox --unread --from bob --json
        posthouse inbox --search '"roll back" deploy*' --before 2026-01-31T00:00:00Z
        posthouse inbox --direct --count 10 --key-file keys/agent.json
    """
    if reading.direct:
        if unread or order or not mail_filter.is_empty or daemon_options.directory or daemon_options.agent:
            raise error("usage", text="--direct reads the whole queue: it excludes filters, --dir and --agent")
        receive(reading, with_mesh(relay_options, daemon_options.mesh), output)
        return
    if reading != THROUGH_DAEMON or relay_options != DEFAULT_RELAY:
        raise error("usage", text="--count, --window, --peek and the options of the relay need --direct")
    with daemon_options.client() as daemon:
        items = daemon.inbox(**mail_filter.filter(), unread=unread or None, order=order, limit=limit)
    output.result({"items": items, "next": items.next}, mail_table(items))
    if items.next is not None:
        is_oldest_first = order == "oldest" or (order is None and (unread or mail_filter.after is not None))
        output.note(f"more: {'--after' if is_oldest_first else '--before'} {items.next}")


def wait(
    *,
    timeout: Annotated[
        float,
        Parameter(
            converter=lambda _type, tokens: parse_wait(tokens[0].value),
            validator=Number(gte=0, lte=86_400),
            help="Seconds to wait, or a duration: 90s, 15m, 2h.",
        ),
    ] = 60.0,
    peek: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Mark nothing: the next wait shows the mail again.")
    ] = False,
    reader: Annotated[
        str | None,
        Parameter(help="Use a cursor with this name: show all mail, read or unread, and mark nothing as seen."),
    ] = None,
    mail_filter: MailFilter = ANY_MAIL,
    limit: Limit = 100,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Wait for unread mail that no wait has shown, show it oldest first and mark it as seen.

    Ends without a result after the timeout. The wait continues while the daemon restarts. Each set of conditions has
    its own mark: waiting for one sender does not skip mail from another.

    For example:

        posthouse inbox wait --timeout 60
        posthouse inbox wait --from bob --timeout 600 --json
        posthouse inbox wait --reader indexer --timeout 3600 --json
    """
    with daemon_options.client() as daemon:
        items = daemon.wait(timeout, **mail_filter.filter(), limit=limit, reader=reader, peek=True)
        if not items:
            output.note(f"no mail within {timeout:g} s")
        output.result({"items": items}, mail_table(items))
        if items and not peek:
            if reader is None:  # before the cursor advances: if this fails, the next wait shows the mail again
                daemon.seen([item.id for item in items])
            daemon.advance(items)


def show(
    id: Annotated[str, Parameter(help="Inbox id or message id of the message.")],  # noqa: A002 - the word of the API
    /,
    *,
    confirm: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Show the text although the message is stale.")
    ] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Show one message of the inbox.

    The text of a message that was not read before its `--valid-until` is withheld: at a terminal the command asks you
    to confirm, elsewhere it needs --confirm.

    For example:

        posthouse inbox show 01JQ8Z5N0000000000000000AB
        posthouse inbox show 01JQ8Z5N0000000000000000AB --confirm --json
    """
    with daemon_options.client() as daemon:
        try:
            item = daemon.item(id, confirm=confirm)
        except PosthouseError as failure:
            if failure.code != "message_stale" or not output.asks(f"{failure}. Show it anyway?"):
                raise
            item = daemon.item(id, confirm=True)
    output.result(item, mail_lines(item))


def seen(
    *ids: Annotated[str, Parameter(help="Inbox ids of the messages.")],
    all: Annotated[  # noqa: A002 - the name of the option
        bool, Parameter(negative=(), show_default=False, help="Mark all mail that is in the inbox now.")
    ] = False,
    mail_filter: MailFilter = ANY_MAIL,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Mark mail as seen, by ids or by conditions: `--unread` and `wait` skip it from then on.

    For example:

        posthouse inbox seen 01JQ8Z5N0000000000000000AB
        posthouse inbox seen --from bob --before 2026-01-31T00:00:00Z
        posthouse inbox seen --all
    """
    if [bool(ids), all, not mail_filter.is_empty].count(True) != 1:
        raise error("usage", text="give either ids, or conditions such as --from, or --all")
    with daemon_options.client() as daemon:
        count = daemon.seen(ids) if ids else daemon.seen_all(**mail_filter.filter())
    output.result({"count": count}, f"{count} marked as seen")


def thread(
    id: Annotated[str, Parameter(help="Any message of the thread: inbox id, message id, or your own id.")],  # noqa: A002
    /,
    *,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Show a thread: the messages that answer each other, received and sent, oldest first.

    For example:

        posthouse inbox thread 01JQ8Z5N0000000000000000AB
    """
    with daemon_options.client() as daemon:
        found = daemon.thread(id)
    output.result(found, _thread_lines(found))


def _thread_lines(found: Thread) -> str:
    names = ", ".join(_address(each.name, each.node, each.agent) for each in found.participants)
    lines = [f"{found.subject}", f"between {names}"]
    if found.budget is not None:
        left = found.budget
        lines.append(f"budget: {left.hops_left} hops and {left.calls_left} messages until {left.expires_at}")
    if not found.is_complete:
        lines.append("part of this thread is not on this host")
    for each in found.messages:
        unread = "" if each.is_read else " (unread)"
        lines += ["", f"{each.at}  {_address(each.sender_name, each.sender, each.from_agent)}{unread}"]
        lines.append("  " + indented(each.body or "(its text is not shown here: see `posthouse inbox show`)", 2))
    return "\n".join(lines)


def _address(name: str | None, node: str, agent: str) -> str:
    host = name or short_node(node)
    return f"{agent}@{host}" if agent else host


def tail(
    *,
    all: Annotated[  # noqa: A002 - the name of the option
        bool, Parameter(negative=(), show_default=False, help="Also show events of peers, relay, outbox and system.")
    ] = False,
    after: Annotated[str | None, Parameter(help="Start after the event with this id.")] = None,
    count: Annotated[int | None, Parameter(validator=Number(gte=1), help="Stop after this many events.")] = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Show mail as it arrives, until Ctrl-C; reconnects and continues where it stopped.

    With --json each line has the id to continue from.

    For example:

        posthouse tail
        posthouse tail --all --json
        posthouse tail --after 01JQ8Z5N0000000000000000AB --count 1
    """
    shown = 0
    with daemon_options.client() as daemon:
        note_membership(daemon, output)
        for event in daemon.events(after):
            if not all and event.event != "message":
                continue
            output.result(event, _event_line(event))
            shown += 1
            if shown == count:
                return


def _event_line(event: DaemonEvent) -> str:
    data = event.data
    when = str(data.get("ts", ""))
    if event.event != "message":
        rest = "  ".join(f"{name}={value}" for name, value in data.items() if name != "ts")
        return one_line(f"{when}  {event.event}  {rest}")
    host = data.get("sender_name") or short_node(str(data.get("sender", "")))
    sender = Address(data.get("from_agent") or "", host)
    topic = f"  #{data['topic']}" if data.get("topic") else ""
    is_withheld = data.get("body") is None and data.get("is_stale")
    text = "(withheld: it is stale)" if is_withheld else shown_body(data.get("body"))
    return one_line(f"{when}  {sender}{topic}  {text}")


app = noun("inbox", cleandoc(mail.__doc__ or ""))
app.default(mail)
app.command(wait, name="wait")
app.command(show, name="show")
app.command(thread, name="thread")
app.command(seen, name="seen")
