"""`posthouse topic list`: the topics of the mesh, and which this host gets."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.near import USUAL, Near


def ls(*, near: Near = USUAL, output: Output = PLAIN) -> None:
    """List the topics of the mesh and the subscriptions of this host.

    For example:

        posthouse topic list
        posthouse topic list --mesh team --json
    """
    with near.client() as daemon:
        answer = daemon.topics()
    topics = [str(each) for each in answer.get("topics", [])]
    patterns = [str(each) for each in answer.get("subscriptions") or []]
    rows = [("topic", each) for each in topics] + [("subscription", each) for each in patterns]
    output.answer(answer, table(("kind", "name"), rows))
    if answer.get("is_cached"):
        output.note("the relay cannot be reached: these topics were last heard of, subscriptions are not known")
