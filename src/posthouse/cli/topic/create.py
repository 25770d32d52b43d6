"""`posthouse topic create`: make a topic."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def create(
    topic: Annotated[str, Parameter(help="Its name: a subject, such as builds.main.")],
    /,
    *,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Make a topic that members can post to and subscribe to.

    For example:

        posthouse topic create builds.main
    """
    with near.client() as daemon:
        answer = daemon.create_topic(topic.removeprefix("#"))
    output.answer(answer, f"made {topic}")
