"""`posthouse inbox`: the mail of this host, newest first."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.inbox.filters import ANY, Wanted
from posthouse.cli.near import USUAL, Near


def mail(
    *,
    unread: Annotated[bool, Parameter(negative=(), show_default=False, help="Only what was not marked as seen.")] = (
        False
    ),
    wanted: Wanted = ANY,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """List mail, newest first, without marking it as seen.

    For example:

        posthouse inbox
        posthouse inbox --unread --from bob --json
    """
    from posthouse.cli.inbox.shown import mail_table

    with near.client() as daemon:
        items = daemon.inbox(**wanted.filter(unread=unread))
    output.answer({"items": items}, mail_table(items))
