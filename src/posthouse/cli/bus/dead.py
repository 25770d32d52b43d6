"""`posthouse bus dead`: messages that nobody could or would take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.bus.message import shorten
from posthouse.cli.bus.outcome import answer_publish
from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.commands import noun
from posthouse.cli.console import PLAIN, Output, table
from posthouse.model.limits import DEAD_LETTER_KEEP_DAYS

if TYPE_CHECKING:
    from posthouse.bus.results import Letter

_SUMMARY = """List, requeue and purge dead letters.

For example:

    posthouse bus dead
    posthouse bus dead team.builder --json
"""

app = noun("dead", _SUMMARY)


@app.default
def dead(
    subject: Annotated[str | None, Parameter(help="Only those of this endpoint.")] = None,
    /,
    *,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """List dead letters with the reason of each.

    For example:

        posthouse bus dead
        posthouse bus dead team.builder --json
    """
    import msgspec

    letters = visit(directory, output, lambda bus: bus.dead_letters(subject))
    if output.json:
        for letter in letters:
            output.answer(msgspec.to_builtins(letter), "")
    elif letters:
        rows = [(x.id, x.failed_at, x.subject, x.reason, _payload(x)) for x in letters]
        output.answer(None, table(("id", "failed", "subject", "reason", "payload"), rows))
    else:
        output.note("no dead letters")


@app.command(name="requeue")
def requeue(
    subject: Annotated[str, Parameter(help="The subject of the letter.")],
    id_: Annotated[str, Parameter(name="ID", help="The id of the letter.")],
    /,
    *,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> int:
    """Send a dead letter again with a fresh budget.

    For example:

        posthouse bus dead requeue team.builder 01JCPZ6Q3M0000000000000000
    """
    return answer_publish(output, visit(directory, output, lambda bus: bus.requeue(subject, id_)))


@app.command(name="purge")
def purge(
    *,
    older_than_days: Annotated[
        float, Parameter(name="--older-than", help="Days since the letter died.")
    ] = DEAD_LETTER_KEEP_DAYS,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Remove old dead letters for good.

    For example:

        posthouse bus dead purge
        posthouse bus dead purge --older-than 0.5
    """
    from datetime import timedelta

    removed = visit(directory, output, lambda bus: bus.purge(timedelta(days=older_than_days)))
    output.answer({"removed": removed}, f"{removed} dead letters removed")


def _payload(letter: Letter) -> str:
    return "(not a message)" if letter.envelope is None else shorten(letter.envelope.payload)
