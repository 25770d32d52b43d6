"""Shared parts of the `posthouse bus` commands: open the bus for one command, read a payload, show messages and
results.

A command opens the bus, does one thing and closes it; a bus needs no running server. A payload that is not JSON is
refused unless --text is given. The bus is imported inside functions.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from posthouse.cli.config import flags_of, load_settings
from posthouse.cli.options import read_text
from posthouse.cli.output import Output, one_line
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.bus import Bus
    from posthouse.bus.results import PublishResult
    from posthouse.cli.config import Flags
    from posthouse.model.envelope import Envelope

    BusFlags = Flags
else:
    BusFlags = flags_of("bus", without="bus.dir")  # --dir is an option of every bus command


Count = Annotated[int | None, Parameter(help="Stop after this many messages.")]
Seconds = Annotated[float | None, Parameter(name="--for", help="Stop after this many seconds.")]
R = TypeVar("R")
#: The option of every command about a bus.
BusDir = Annotated[
    Path | None,
    Parameter(name="--dir", help="Data directory. Default: the setting bus.dir."),
]
#: The sender of a message.
Sender = Annotated[str, Parameter(name="--from", help="Subject of the sender.")]
DEFAULT_SENDER = "cli"


def with_bus(
    directory: Path | None,
    output: Output,
    work: Callable[[Bus], Awaitable[R]],
    *,
    shows_refusals: bool = False,
    **options: Any,
) -> R:
    """Open the bus with these options, run `work` on it and close it again.

    If the command shows refusals itself, the log does not repeat them.
    """
    import asyncio
    import logging

    from posthouse.bus import Bus

    async def open_and_work() -> R:
        async with Bus(directory, **options) as bus:
            return await work(bus)

    if output.json or shows_refusals:
        _silence_log(logging.CRITICAL if output.json else logging.ERROR)
    return asyncio.run(open_and_work())


def bus_arguments(flags: BusFlags | None) -> dict[str, Any]:
    """Return the given flags as arguments of Bus, checked against the bounds of their settings."""
    given = {} if flags is None else {name: value for name, value in flags.given().items() if value is not None}
    values = load_settings(given) if given else {}
    return {name.removeprefix("bus."): values[name].value for name in given}


def _silence_log(level: int) -> None:
    """Log nothing below the level: with --json stderr carries only one problem object."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


#: The payload, as an argument.
Payload = Annotated[str, Parameter(allow_leading_hyphen=True, help="The payload as JSON; `-` reads it from stdin.")]
AsText = Annotated[
    bool, Parameter(name="--text", negative=(), show_default=False, help="The payload is plain text, not JSON.")
]
_SHOWN_CHARS = 120  # of a payload in a table


def read_payload(given: str, as_text: bool) -> Any:
    """Return the payload; raise a usage error if it is not JSON, because a guess could send something else."""
    from posthouse.model.strict_json import parse_json

    text = read_text(given)
    if as_text:
        return text
    try:
        return parse_json(text)
    except Exception as failure:
        hint = 'Quote it as JSON, such as \'"hello"\' or \'{"text": "hello"}\', or use --text.'
        raise error("usage", text=f"the payload is not JSON: {failure}", hint=hint) from failure


def plain_envelope(envelope: Envelope) -> Any:
    """Return the message as JSON values, with the field names of its file."""
    import msgspec

    return msgspec.to_builtins(envelope)


def describe(envelope: Envelope) -> str:
    """Return a message as one line: time, sender, subject, payload."""
    return one_line(f"{envelope.created_at}  {envelope.from_} -> {envelope.subject}  {shorten(envelope.payload)}")


def shorten(payload: Any) -> str:
    """Return the payload as one line of text, shortened if it is long."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def show_published(output: Output, result: PublishResult) -> int:
    """Show the result and return the exit code: 1 if no mailbox accepted the message."""
    import msgspec

    lines = [f"{result.message_id}  stored in {count(result.delivered_to, 'mailbox', 'mailboxes')}"]
    lines += [f"refused by {entry.subject}: {entry.text}" for entry in result.rejected]
    if not result.delivered_to and not result.rejected:
        lines.append("no endpoint matches: the message is a dead letter in unrouted/")
    output.result(msgspec.to_builtins(result), "\n".join(lines))
    return Exit.OK if result.delivered_to else Exit.REFUSED


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 mailbox`, `2 mailboxes`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
