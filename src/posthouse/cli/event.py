"""`posthouse event`: publish signed events to a relay, get, query, follow and delete them.

With --json an event is printed as on the wire, plus `plaintext` if it was sealed for this node; as text it shows the
opened content, or a note that it is sealed for other nodes. Publishing an event that the relay already has succeeds, so
a retry is safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.config import split_pair
from posthouse.cli.options import DEFAULT_MESH_OPTIONS, MeshOptions, read_file, read_text
from posthouse.cli.output import PLAIN, Output, indented, one_line, short_node, table
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client import Client, Published, Received, Stored
    from posthouse.model.event import Event


#: The tags of a new event.
EventTags = Annotated[
    tuple[str, ...],
    Parameter(
        name="--tag",
        negative=(),
        show_default=False,
        help='A tag: NAME=VALUE, or a JSON array such as ["blob","SHA256","SIZE","URL"]. Repeatable.',
    ),
]

#: A cursor is URL-safe base64, so it may begin with a hyphen.
PageCursor = Annotated[
    str | None, Parameter(allow_leading_hyphen=True, help="Cursor of the previous page: continue there.")
]


def parse_tags(given: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the tags, or raise a usage error."""
    return [_parse_tag(text) for text in given]


def _parse_tag(text: str) -> tuple[str, ...]:
    if text.startswith("["):
        return _parse_array(text)
    return split_pair(text, "--tag")


def _parse_array(text: str) -> tuple[str, ...]:
    import msgspec

    try:
        tag = msgspec.json.decode(text, type=tuple[str, ...])
    except ValueError as fault:
        raise error("usage", text=f"--tag {text!r} is not a JSON array of strings: {fault}") from fault
    if not tag:
        raise error("usage", text="a tag needs at least a name")
    return tag


_GROUP = Group("Filter", sort_key=3)
_MANY = Parameter(negative=(), show_default=False)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class EventFilter:
    """Selects the events that match every given option; a repeated option matches any of its values."""

    kind: Annotated[tuple[int, ...], _MANY, Parameter(help="Event kind. Repeatable.")] = ()
    author: Annotated[
        tuple[str, ...], _MANY, Parameter(help="Author: a node id or the name of a member. Repeatable.")
    ] = ()
    id: Annotated[tuple[str, ...], _MANY, Parameter(help="Event id. Repeatable.")] = ()
    tag: Annotated[tuple[str, ...], _MANY, Parameter(help="NAME=VALUE: a tag with this first value. Repeatable.")] = ()
    since_ns: Annotated[int | None, Parameter(help="Created at this time or later, in nanoseconds since 1970.")] = None
    until_ns: Annotated[int | None, Parameter(help="Created at this time or earlier, in nanoseconds since 1970.")] = (
        None
    )

    def filter(self, mesh: str | None, authors: list[str]) -> dict[str, Any]:
        """Return the filter in its wire form; `authors` are the resolved node ids."""
        given: dict[str, Any] = {
            "kinds": list(self.kind),
            "authors": authors,
            "ids": list(self.id),
            "mesh": mesh,
            "since_ns": self.since_ns,
            "until_ns": self.until_ns,
        }
        for text in self.tag:
            name, value = split_pair(text, "--tag")
            given.setdefault(f"#{name}", []).append(value)
        return {name: value for name, value in given.items() if value not in (None, [])}


#: The default of every command's `event_filter`.
ANY_EVENT = EventFilter()


#: printed after the seq of an event whose key was no longer trusted when it was signed
SUSPECT = " suspect"


def event_value(client: Client, stored: Stored | Received, **more: Any) -> dict[str, Any]:
    """Return an event as JSON values: fields, seq, `plaintext` if it was sealed for this node, `suspect` if marked."""
    import msgspec

    value: dict[str, Any] = msgspec.to_builtins(stored.event) | {"seq": stored.seq} | more
    value |= {"suspect": True} if stored.is_suspect else {}
    plaintext = opened(client, stored.event)
    return value if plaintext is None else value | {"plaintext": plaintext}


def event_lines(client: Client, stored: Stored) -> str:
    """Return an event as lines of text."""
    event = stored.event
    tags = [" ".join(tag) for tag in event.tags]
    lines = [
        f"id       {event.id}",
        f"seq      {stored.seq}{SUSPECT if stored.is_suspect else ''}",
        f"author   {event.pubkey}",
        f"created  {created(event)}",
        f"kind     {event.kind}",
        *(f"tag      {one_line(tag)}" for tag in tags),
        f"content  {indented(content(client, event), 9)}",
    ]
    return "\n".join(lines)


def event_row(client: Client, stored: Stored | Received) -> tuple[str, ...]:
    """Return an event as a row of a table."""
    event, seq = stored.event, stored.seq
    author = short_node(event.pubkey)
    mark = SUSPECT if stored.is_suspect else ""
    return ("-" if seq is None else f"{seq}{mark}", created(event), author, str(event.kind), content(client, event))


def created(event: Event) -> str:
    """Return the creation time that the author claims, as text."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(event.created_at_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def content(client: Client, event: Event) -> str:
    """Return the opened content, or a note that it is sealed for other nodes."""
    if event.tag("enc") is None:
        return event.content
    plaintext = opened(client, event)
    return f"({len(event.content)} characters sealed for other nodes)" if plaintext is None else plaintext


def opened(client: Client, event: Event) -> str | None:
    """Return the plaintext of a sealed event, or None if it is not sealed or not for this node."""
    if event.tag("enc") is None:
        return None
    try:
        return client.open(event)
    except PosthouseError:
        return None


Readers = Annotated[
    tuple[str, ...],
    Parameter(negative=(), show_default=False, help="Encrypt the content for this member or node id. Repeatable."),
]


def publish(
    content: Annotated[str, Parameter(allow_leading_hyphen=True, help="The content; `-` reads it from stdin.")] = "",
    /,
    *,
    kind: Annotated[
        int, Parameter(help="Event kind: 1-9999 stored, 10000-19999 replaceable, 20000-29999 ephemeral.")
    ] = 1,
    tag: EventTags = (),
    seal_for: Readers = (),
    event: Annotated[
        Path | None, Parameter(help="Publish the signed event in this file (`-`: stdin) instead of a new one.")
    ] = None,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Publish an event; returns when the relay has stored it.

    Publishing an event that the relay already has succeeds, so a signed event can be sent again after any failure.

    For example:

        posthouse event publish "hello" --tag t=greetings
        posthouse event publish "for your eyes" --mesh team --seal-for bob --json
        echo green | posthouse event publish - --kind 30000 --tag d=build/main
    """
    text = read_text(content)
    tags = parse_tags(tag)

    async def work(client: Client) -> Published:
        if event is not None:
            return await client.publish_event(_read_event(event))
        return await client.publish(text, kind=kind, tags=tags, seal_for=seal_for)

    published = mesh_options.run(mesh_options.name, work)
    state = "already stored" if published.duplicate else "passed on" if published.seq is None else "stored"
    if published.current is False:
        state += ", not current: a newer event of this coordinate exists"
    seq = "" if published.seq is None else f"  seq {published.seq}"
    output.result(published.answer, f"{published.event.id}  {state}{seq}")


def _read_event(path: Path) -> Event:
    from posthouse.model.event import decode_event

    return decode_event(read_file(path).strip())


def get(
    id: Annotated[str, Parameter(help="Event id.")],  # noqa: A002 - the word of the API
    /,
    *,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Show one event after verifying its signature; content sealed for this node is opened.

    For example:

        posthouse event get 643b...739e
        posthouse event get 643b...739e --mesh team --json
    """

    async def work(client: Client) -> None:
        stored = await client.get(id)
        output.result(event_value(client, stored), event_lines(client, stored))

    mesh_options.run(mesh_options.name, work)


def query(
    *,
    event_filter: EventFilter = ANY_EVENT,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500), help="Maximum number to show.")] = 50,
    order: Annotated[Literal["asc", "desc"], Parameter(help="Commit order, or newest first.")] = "asc",
    cursor: PageCursor = None,
    count: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Show only the number of matching events.")
    ] = False,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """List stored events in commit order, after verifying their signatures.

    For example:

        posthouse event query --kind 1 --limit 10 --order desc
        posthouse event query --mesh team --author alice --tag t=alerts --json
        posthouse event query --kind 1 --count
    """
    mesh = mesh_options.name

    async def work(client: Client) -> None:
        authors = [await client.meshes.resolve(author, mesh) for author in event_filter.author]
        conditions = event_filter.filter(mesh, authors)
        if count:
            number = await client.count(conditions)
            output.result({"count": number}, str(number))
            return
        page = await client.query(conditions, limit=limit, order=order, cursor=cursor)
        value = {"events": [event_value(client, each) for each in page.events], "cursor": page.cursor}
        rows = [event_row(client, each) for each in page.events]
        output.result(value, table(("seq", "created", "author", "kind", "content"), rows))
        if page.cursor is not None:
            output.note(f"more: --cursor {page.cursor}")

    mesh_options.run(mesh, work)


def tail(
    *,
    event_filter: EventFilter = ANY_EVENT,
    limit: Annotated[
        int, Parameter(validator=Number(gte=0, lte=500), help="Start with this many of the newest stored events.")
    ] = 10,
    cursor: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Start after this cursor instead, without a gap.")
    ] = None,
    count: Annotated[int | None, Parameter(validator=Number(gte=1), help="Stop after this many events.")] = None,
    stored: Annotated[bool, Parameter(negative=(), show_default=False, help="Stop after the stored events.")] = False,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Show stored events, then live ones, until Ctrl-C; reconnects without gaps or duplicates.

    With --json each line has the cursor to continue from.

    For example:

        posthouse event tail --kind 1
        posthouse event tail --mesh team --tag t=alerts --limit 0 --json
        posthouse event tail --cursor "$CURSOR" --stored --json
    """
    mesh = mesh_options.name

    async def work(client: Client) -> None:
        authors = [await client.meshes.resolve(author, mesh) for author in event_filter.author]
        start = None if cursor is not None else limit
        subscription = await client.subscribe(event_filter.filter(mesh, authors), cursor=cursor, limit=start)
        shown = 0
        async for received in subscription.stored() if stored else subscription:
            row = one_line("  ".join(event_row(client, received)))
            output.result(event_value(client, received, cursor=subscription.cursor), row)
            shown += 1
            if shown == count:
                return

    mesh_options.run(mesh, work)


def address(
    coordinate: Annotated[str, Parameter(help="KIND:NODE_ID:D, as in 30000:ed25519:<64 hex>:build/main.")],
    /,
    *,
    history: Annotated[
        bool, Parameter(negative=(), show_default=False, help="List all events of the coordinate.")
    ] = False,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500), help="Maximum number to show.")] = 50,
    cursor: PageCursor = None,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Show the latest event of a coordinate, or with --history all of them in commit order.

    For example:

        posthouse event address "30000:$NODE:build/main"
        posthouse event address "30000:$NODE:build/main" --history --json
    """

    async def show_latest(client: Client) -> None:
        stored = await client.address(coordinate)
        output.result(event_value(client, stored), event_lines(client, stored))

    async def show_history(client: Client) -> None:
        page = await client.history(coordinate, limit=limit, cursor=cursor)
        value = {"events": [event_value(client, each) for each in page.events], "cursor": page.cursor}
        rows = [event_row(client, each) for each in page.events]
        output.result(value, table(("seq", "created", "author", "kind", "content"), rows))

    mesh_options.run(mesh_options.name, show_history if history else show_latest)


def pointer(
    resource: Annotated[str, Parameter(help="The resource whose fence the event was written under.")],
    /,
    *,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Show the newest event that was written under the fence of a resource, across all authors.

    This is the event with the highest fencing token: the last write of the latest lock holder.

    For example:

        posthouse event pointer deploy/production
        posthouse event pointer deploy/production --mesh team --json
    """
    mesh = mesh_options.name

    async def work(client: Client) -> None:
        stored = await client.pointer(resource, mesh=mesh)
        output.result(event_value(client, stored), event_lines(client, stored))

    mesh_options.run(mesh, work)


def delete(
    *ids: Annotated[str, Parameter(name="id", show_default=False, help="Id of an event of this node.")],
    address: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="Coordinate KIND:NODE_ID:D of this node. Repeatable."),
    ] = (),
    reason: Annotated[str, Parameter(show_default=False, help="Reason, shown to readers of the events.")] = "",
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Delete events of this node: the relay erases their content and informs the readers of its streams.

    Messages that wait in a queue are no longer delivered. A coordinate loses all its versions up to now. Copies outside
    the relay stay: inboxes of other hosts, backups, and old versions of a lake until they are vacuumed.

    For example:

        posthouse event delete 4f0c...19aa --reason "wrong branch"
        posthouse event delete --address "30000:$NODE:build/main" --json
    """
    if not ids and not address:
        raise error("usage", text="give an event id or --address", hint="`posthouse event query` lists events.")
    mesh = mesh_options.name

    async def work(client: Client) -> list[Published]:
        return await client.delete(ids, coordinates=address, reason=reason, mesh=mesh)

    published = mesh_options.run(mesh, work)
    deleted = sum([int(each.answer.get("deleted", 0)) for each in published])
    value = {"deletions": [each.event.id for each in published], "deleted": deleted}
    output.result(value, f"deleted {deleted} event{'' if deleted == 1 else 's'}")
    if deleted < len(ids):
        output.note("unknown ids are blocked in case their events arrive later; events of other authors stay")


app = noun("event", "Publish signed events to a relay, query, follow and delete them.")
app.command(publish, name="publish")
app.command(get, name="get")
app.command(query, name="query")
app.command(tail, name="tail")
app.command(address, name="address")
app.command(pointer, name="pointer")
app.command(delete, name="delete")
