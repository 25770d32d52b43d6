"""`posthouse inbox wait`: sleep until mail comes. That is how an agent sleeps."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.inbox.filters import ANY, Wanted
from posthouse.cli.near import USUAL, Near


def wait(
    *,
    timeout: Annotated[float, Parameter(validator=Number(gte=0, lte=86_400), help="How many seconds at most.")] = 60.0,
    peek: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Leave it unread: the next wait shows it again.")
    ] = False,
    wanted: Wanted = ANY,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Show unread mail as soon as there is some and mark it as seen; ends without any when the time is over.

    A daemon that is restarted meanwhile is waited for.

    For example:

        posthouse inbox wait --timeout 60
        posthouse inbox wait --from bob --timeout 600 --json
        posthouse inbox wait --timeout 0 --peek
    """
    from posthouse.cli.inbox.shown import mail_table

    with near.client() as daemon:
        items = daemon.wait(timeout, **wanted.filter(unread=True))
        if not items:
            output.note(f"no mail within {timeout:g} s")
        output.answer({"items": items}, mail_table(items))
        if items and not peek:
            daemon.seen([item.id for item in items])
