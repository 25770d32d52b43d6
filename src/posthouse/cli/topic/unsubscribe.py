"""`posthouse topic unsubscribe`: end a subscription."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def unsubscribe(
    pattern: Annotated[str, Parameter(help="The pattern that was subscribed.")],
    /,
    *,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """End a subscription; what came before stays in the inbox.

    For example:

        posthouse topic unsubscribe 'builds.>'
    """
    with near.client() as daemon:
        answer = daemon.unsubscribe(pattern.removeprefix("#"))
    output.answer(answer, f"unsubscribed {pattern}")
