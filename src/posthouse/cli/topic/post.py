"""`posthouse topic post`: a message to everybody who subscribed to a topic."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.message_options import NO_FLAGS, MessageFlags, Text, read_text
from posthouse.cli.near import USUAL, Near


def post(
    topic: Annotated[str, Parameter(help="The topic.")],
    message: Text,
    /,
    *,
    flags: MessageFlags = NO_FLAGS,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Post to a topic; done when the daemon has it on its disk.

    For example:

        posthouse topic post builds.main "green"
        posthouse topic post builds.main - --meta '{"commit":"abc"}' --json
    """
    with near.client() as daemon:
        accepted = daemon.post(topic.removeprefix("#"), read_text(message), **flags.given())
    output.answer(accepted, f"{accepted.client_message_id}  {accepted.status}")
