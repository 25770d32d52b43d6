"""`posthouse history`: the messages of a topic, or those exchanged with a member."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.near import USUAL, Near


def history(
    of: Annotated[str, Parameter(help="#topic, or a member (name or node id).")],
    /,
    *,
    before: Annotated[str | None, Parameter(help="Older than this place; a former answer tells it.")] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500), help="How many at most.")] = 50,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Show messages of a topic or with a member, newest first.

    What the relay has pruned is looked up in the lake of this host, where there is one.

    For example:

        posthouse history '#builds'
        posthouse history bob --limit 10 --json
    """
    from posthouse.cli.remembered_history import complete

    with near.client() as daemon:
        answer = complete(daemon, of, before, limit)
    output.answer(answer, table(("sent", "from", "text"), [_row(each) for each in answer.get("messages", [])]))
    if answer.get("before"):
        output.note(f"more: --before {answer['before']}")


def _row(message: dict[str, Any]) -> tuple[str, str, str]:
    who = message.get("sender_name") or str(message.get("sender", "")).removeprefix("ed25519:")[:8]
    body = message.get("body")
    return str(message.get("sent_at")), who, "(undecryptable)" if body is None else str(body)
