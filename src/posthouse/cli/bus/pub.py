"""`posthouse bus pub`: publish one message."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.bus.message import AsText, Payload, read_payload
from posthouse.cli.bus.outcome import answer_publish
from posthouse.cli.bus.place import DEFAULT_SENDER, BusDir, Sender, visit
from posthouse.cli.console import PLAIN, Output


def pub(
    subject: Annotated[str, Parameter(help="A subject, or a pattern to reach several endpoints.")],
    payload: Payload,
    /,
    *,
    from_: Sender = DEFAULT_SENDER,
    reply_to: Annotated[str | None, Parameter(help="The subject an answer should go to.")] = None,
    in_reply_to: Annotated[str | None, Parameter(help="The id of the message this one answers.")] = None,
    text: AsText = False,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> int:
    """Publish a message; the exit code is 1 when no mailbox took it.

    For example:

        posthouse bus pub team.builder '{"content": "please build"}'
        posthouse bus pub team.builder "please build" --text --from team.lead
        echo '[1, 2]' | posthouse bus pub 'team.*' - --json
    """
    content = read_payload(payload, text)
    result = visit(
        directory,
        output,
        lambda bus: bus.publish(subject, content, from_=from_, reply_to=reply_to, in_reply_to=in_reply_to),
    )
    return answer_publish(output, result)
