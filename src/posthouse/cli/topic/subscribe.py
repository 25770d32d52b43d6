"""`posthouse topic subscribe`: get what is posted to topics that match."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def subscribe(
    pattern: Annotated[str, Parameter(help="A topic, or a pattern such as builds.>.")],
    /,
    *,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Subscribe this host to topics; what is posted from now on comes to its inbox.

    For example:

        posthouse topic subscribe 'builds.>'
    """
    with near.client() as daemon:
        answer = daemon.subscribe(pattern.removeprefix("#"))
    output.answer(answer, f"subscribed {pattern}")
