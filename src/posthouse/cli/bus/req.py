"""`posthouse bus req`: ask and wait for the answer."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.bus.message import AsText, Payload, plain_envelope, read_payload
from posthouse.cli.bus.place import DEFAULT_SENDER, BusDir, Sender, visit
from posthouse.cli.console import PLAIN, Output


def req(
    subject: Annotated[str, Parameter(help="The endpoint to ask.")],
    payload: Payload,
    /,
    *,
    from_: Sender = DEFAULT_SENDER,
    timeout_s: Annotated[float, Parameter(name="--timeout", help="Seconds to wait for the answer.")] = 30.0,
    text: AsText = False,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Send a request and show the first answer.

    For example:

        posthouse bus req math.double '{"n": 21}'
        posthouse bus req team.builder status --text --timeout 5 --json
    """
    content = read_payload(payload, text)
    reply = visit(directory, output, lambda bus: bus.request(subject, content, from_=from_, timeout_s=timeout_s))
    shown = reply.payload if isinstance(reply.payload, str) else _pretty(reply.payload)
    output.answer(plain_envelope(reply), shown)


def _pretty(payload: object) -> str:
    import json

    return json.dumps(payload, ensure_ascii=False, indent=2)
