"""`posthouse inbox show`: one message with all that is known of it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def show(
    id: Annotated[str, Parameter(help="Its id in the inbox.")],  # noqa: A002 - the domain's word
    /,
    *,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Show one message of the inbox.

    For example:

        posthouse inbox show 01JQ8Z5N0000000000000000AB
    """
    from posthouse.cli.inbox.shown import mail_lines

    with near.client() as daemon:
        item = daemon.item(id)
    output.answer(item, mail_lines(item))
