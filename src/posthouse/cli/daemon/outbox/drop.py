"""`posthouse daemon outbox drop`: give a row up."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def drop(
    id: Annotated[str, Parameter(help="Its id, client_message_id or event id.")],  # noqa: A002 - the domain's word
    /,
    *,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Abort a dead or pending row for good; its id stays taken.

    For example:

        posthouse daemon outbox drop 01JQ8Z5N0000000000000000AB
    """
    with near.client() as daemon:
        dropped = daemon.drop(id)
    output.answer({"aborted_row_id": dropped.aborted_row_id}, f"{dropped.aborted_row_id} aborted")
