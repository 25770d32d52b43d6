"""Messages on the command line: how a payload is given, and how a message is shown."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.model.envelope import Envelope

#: Where a payload is written; `-` reads it from standard input.
Payload = Annotated[
    str, Parameter(allow_leading_hyphen=True, help="The payload as JSON, or `-` to read it from standard input.")
]

#: Takes the payload as it is, without JSON.
AsText = Annotated[
    bool, Parameter(name="--text", negative=(), show_default=False, help="Take the payload as plain text, not as JSON.")
]

_SHOWN_CHARS = 120  # of a payload in a line for people


def read_payload(given: str, as_text: bool) -> Any:
    """Return the payload a user gave; what is no JSON is refused, because guessing would send something else."""
    from posthouse.model.strict_json import parse_json

    text = sys.stdin.read() if given == "-" else given
    if as_text:
        return text
    try:
        return parse_json(text)
    except Exception as failure:
        hint = 'Quote it as JSON, such as \'"hello"\' or \'{"text": "hello"}\', or give --text.'
        raise error("usage", text=f"the payload is not JSON: {failure}", hint=hint) from failure


def plain_envelope(envelope: Envelope) -> Any:
    """Return the message as JSON values, named as in its file."""
    import msgspec

    return msgspec.to_builtins(envelope)


def describe(envelope: Envelope) -> str:
    """Return one line for people: when, from whom, to whom, what."""
    return f"{envelope.created_at}  {envelope.from_} -> {envelope.subject}  {shorten(envelope.payload)}"


def shorten(payload: Any) -> str:
    """Return the payload as text of one line, cut where it gets long."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
