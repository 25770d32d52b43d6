"""`posthouse event publish`: sign an event and send it, or send one that is signed already."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.event.tags import EventTags, parse_tags
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client import Client, Published
    from posthouse.model.event import Event

Readers = Annotated[
    tuple[str, ...],
    Parameter(negative=(), show_default=False, help="Seal the content for this member or node id. Several times."),
]


def publish(
    content: Annotated[str, Parameter(allow_leading_hyphen=True, help="The content; `-` reads it from stdin.")] = "",
    /,
    *,
    kind: Annotated[int, Parameter(help="The kind: 1-9999 kept, 10000-19999 replaceable, 20000-29999 passed on.")] = 1,
    tag: EventTags = (),
    seal_for: Readers = (),
    event: Annotated[
        Path | None, Parameter(help="Send the signed event in this file (`-`: stdin) instead of making one.")
    ] = None,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Publish an event; done when the relay has stored it.

    An event that the relay has already is a success too, so a signed event can be sent again after any failure.

    For example:

        posthouse event publish "hello" --tag t=greetings
        posthouse event publish "for your eyes" --mesh team --seal-for bob
        echo '{"state":"green"}' | posthouse event publish - --kind 30000 --tag d=build/main --json
    """
    text = sys.stdin.read() if content == "-" else content
    tags = parse_tags(tag)

    async def work(client: Client) -> Published:
        if event is not None:
            return await client.publish_event(_read(event))
        return await client.publish(text, kind=kind, tags=tags, seal_for=seal_for)

    published = reach.visit(mesh, work)
    state = "was there already" if published.duplicate else "passed on" if published.seq is None else "stored"
    seq = "" if published.seq is None else f"  seq {published.seq}"
    output.answer(published.answer, f"{published.event.id}  {state}{seq}")


def _read(path: Path) -> Event:
    from posthouse.model.event import decode_event

    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as failure:
        raise error("usage", text=f"{path} cannot be read: {failure.strerror}") from failure
    return decode_event(data.strip())
