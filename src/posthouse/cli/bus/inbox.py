"""`posthouse bus inbox`: read the mail that waits at an endpoint, and acknowledge it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.bus.message import plain_envelope, shorten
from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.console import PLAIN, Output, table
from posthouse.model.codes.spec import Exit


def inbox(
    subject: Annotated[str, Parameter(help="The endpoint.")],
    /,
    *,
    limit: Annotated[int, Parameter(help="How many messages to show.")] = 20,
    after: Annotated[str | None, Parameter(help="Show those after this message id.")] = None,
    ack: Annotated[str | None, Parameter(help="Acknowledge this message id instead of reading.")] = None,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> int:
    """Show the mail that waits, oldest first; it stays there until it is acknowledged or served.

    For example:

        posthouse bus inbox team.me
        posthouse bus inbox team.me --limit 100 --json
        posthouse bus inbox team.me --ack 01JCPZ6Q3M0000000000000000
    """
    if ack is not None:
        answer = visit(directory, output, lambda bus: bus.ack(subject, ack))
        output.answer({"id": ack, "answer": answer}, f"{ack}  {answer}")
        return Exit.OK if answer == "acked" else Exit.REFUSED
    mail = visit(directory, output, lambda bus: bus.read_inbox(subject, limit, after=after))
    if output.json:
        for envelope in mail:
            output.answer(plain_envelope(envelope), "")
    elif mail:
        rows = [(e.id, e.created_at, e.from_, e.subject, shorten(e.payload)) for e in mail]
        output.answer(None, table(("id", "created", "from", "subject", "payload"), rows))
    else:
        output.note("no mail")
    return Exit.OK
