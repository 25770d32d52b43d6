"""`posthouse message send`: a message to a member or a topic, without a daemon."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client import Client, Sent


def send(
    to: Annotated[str, Parameter(help="A member's name, a node id, or `#topic`.")],
    body: Annotated[str, Parameter(help="The message; `-` reads it from stdin.")],
    /,
    *,
    client_message_id: Annotated[
        str | None,
        Parameter(name="--id", help="Your own id: sent again with the same text, the message is there once."),
    ] = None,
    reply_to: Annotated[str | None, Parameter(help="Id of the message this one answers.")] = None,
    priority: Annotated[
        Literal["now", "next", "low"], Parameter(help="How urgent it is; for the reader, never reorders.")
    ] = "next",
    meta: Annotated[str | None, Parameter(help="A JSON object; it stays in the clear.")] = None,
    mention: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="A member it speaks of. Several times."),
    ] = (),
    unsealed: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Leave a direct message in the clear.")
    ] = False,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Send a message; done when the relay has it, whether or not its reader is there.

    A direct message is sealed for its reader. A sealed message is other bytes each time this command runs, so --id
    makes a retry safe for topics and unsealed messages only; a daemon keeps the sealed bytes.

    For example:

        posthouse message send bob "the build is green"
        posthouse message send "#alerts.disk" "92 % full" --mesh team --priority now --json
    """
    text = sys.stdin.read() if body == "-" else body
    given = _meta(meta)

    async def work(client: Client) -> Sent:
        return await client.send(
            to,
            text,
            client_message_id=client_message_id,
            reply_to=reply_to,
            priority=priority,
            meta=given,
            mentions=mention,
            is_sealed=not unsealed,
        )

    _tell(reach.visit(mesh, work), output)


def _tell(sent: Sent, output: Output) -> None:
    value = {
        "id": sent.id,
        "seq": sent.seq,
        "duplicate": sent.duplicate,
        "client_message_id": sent.client_message_id,
        "not_queued": [each._asdict() for each in sent.not_queued],
    }
    state = "was there already" if sent.duplicate else "accepted"
    output.answer(value, f"{sent.id}  {state}  seq {sent.seq}")
    for each in sent.not_queued:
        output.note(f"not queued for {each.recipient}: {each.reason}")


def _meta(text: str | None) -> dict[str, Any] | None:
    from posthouse.model.strict_json import parse_json

    value = None if text is None else parse_json(text)
    if value is not None and not isinstance(value, dict):
        raise error("usage", text="--meta is a JSON object")
    return value
