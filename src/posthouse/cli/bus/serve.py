"""`posthouse bus serve`: be the agent behind an endpoint, by hand or with a program.

With `--run` each message starts the program with the payload as JSON on its standard input: exit code 0 means
handled, anything else fails the message. What it prints goes to reply_to, if the message has one, as JSON where it
is JSON and else as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.bus.message import describe, plain_envelope
from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.bus.tap import Count, Seconds
from posthouse.cli.console import PLAIN, Output
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.bus import Bus
    from posthouse.model.envelope import Envelope


def serve(
    subject: Annotated[str, Parameter(help="The endpoint to serve; it is registered if need be.")],
    /,
    *,
    run: Annotated[str | None, Parameter(help="A program that handles each message.")] = None,
    owner: Annotated[str | None, Parameter(help="Who the endpoint belongs to.")] = None,
    count: Count = None,
    for_s: Seconds = None,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Register an endpoint, take its messages and show them.

    For example:

        posthouse bus serve team.me
        posthouse bus serve math.double --run 'jq ".n * 2"'
        posthouse bus serve team.me --count 1 --json
    """
    agent = Agent(output, run, count)
    visit(directory, output, lambda bus: agent.work(bus, subject, owner, for_s))


class Agent:
    """The handler of the endpoint and what it remembers."""

    def __init__(self, output: Output, run: str | None, count: int | None) -> None:
        self.output = output
        self.run = run
        self.left = count

    async def work(self, bus: Bus, subject: str, owner: str | None, for_s: float | None) -> None:
        """Serve until enough messages were handled, the time is over, or the user has enough."""
        import asyncio
        import contextlib

        done = asyncio.Event()

        async def handle(envelope: Envelope) -> None:
            self.output.answer(plain_envelope(envelope), describe(envelope))
            if self.run is not None:
                await self._answer(bus, envelope, await start(self.run, envelope.payload))
            if self.left is not None:
                self.left -= 1
                if self.left <= 0:
                    done.set()

        await bus.register_endpoint(subject, owner=owner)
        unsubscribe = await bus.subscribe(subject, handle)
        self.output.note(f"serving {subject} on {bus.path}; Ctrl-C ends it")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), for_s)
        await unsubscribe()

    async def _answer(self, bus: Bus, envelope: Envelope, printed: str) -> None:
        if envelope.reply_to is not None:
            await bus.publish(envelope.reply_to, _as_payload(printed), from_=envelope.subject)


async def start(command: str, payload: Any) -> str:
    """Run the program on one payload and return what it printed; a failure of the program is one of the message."""
    import asyncio
    import json
    import shlex

    words = shlex.split(command)
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
    except OSError as failure:
        raise error("usage", text=f"{words[0]} cannot be started: {failure.strerror}") from failure
    try:
        printed, _ = await process.communicate(json.dumps(payload).encode())
    finally:
        if process.returncode is None:  # the handler ran out of time: the program must not outlive it
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"{words[0]} ended with exit code {process.returncode}")
    return printed.decode(errors="replace")


def _as_payload(printed: str) -> Any:
    from posthouse.model.strict_json import parse_json

    try:
        return parse_json(printed)
    except PosthouseError:
        return printed.rstrip("\n")
