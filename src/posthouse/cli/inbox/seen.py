"""`posthouse inbox seen`: mark mail as read."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def seen(
    *ids: Annotated[str, Parameter(help="Ids in the inbox.")],
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Mark mail as seen, so that `--unread` and `wait` leave it out.

    For example:

        posthouse inbox seen 01JQ8Z5N0000000000000000AB
    """
    from posthouse.model.errors import error

    if not ids:
        raise error("usage", text="give at least one id")
    with near.client() as daemon:
        count = daemon.seen(ids)
    output.answer({"count": count}, f"{count} marked as seen")
