"""`posthouse bus`: publish, request, read, watch and serve messages on a bus of this machine.

`serve --run` starts a program for each message with the payload as JSON on stdin: exit code 0 means handled, any
other code fails the message. If the message has a reply_to, the program's output is published there, as JSON if it
parses, else as text. Administration is in bus_admin, the live view in bus_top; all verbs are registered here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli import bus_session
from posthouse.cli.bus_admin import access_app as access
from posthouse.cli.bus_admin import breakers_app as breakers
from posthouse.cli.bus_admin import dead_app as dead
from posthouse.cli.bus_admin import endpoints_app as endpoints
from posthouse.cli.bus_admin import metrics, rebuild, recover
from posthouse.cli.bus_limits import limits
from posthouse.cli.bus_top import top
from posthouse.cli.commands import noun
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.bus import Bus
    from posthouse.model.envelope import Envelope


def pub(
    subject: Annotated[str, Parameter(help="A subject, or a pattern that matches several endpoints.")],
    payload: bus_session.Payload,
    /,
    *,
    from_: bus_session.Sender = bus_session.DEFAULT_SENDER,
    reply_to: Annotated[str | None, Parameter(help="Subject for replies.")] = None,
    in_reply_to: Annotated[str | None, Parameter(help="Id of the message this one answers.")] = None,
    ttl_s: Annotated[float | None, Parameter(name="--ttl", help="Seconds until the message expires.")] = None,
    wait_s: Annotated[
        float | None,
        Parameter(name="--wait", help="Seconds to wait out a rate limit, a full mailbox or an open breaker."),
    ] = None,
    text: bus_session.AsText = False,
    directory: bus_session.BusDir = None,
    flags: bus_session.BusFlags | None = None,
    output: Output = PLAIN,
) -> int:
    """Publish a message; the exit code is 1 if no mailbox accepted it.

    For example:

        posthouse bus pub team.builder '{"content": "please build"}'
        posthouse bus pub team.builder "please build" --text --from team.lead
        posthouse bus pub team.builder "please build" --text --ttl 600 --wait 30
        echo '[1, 2]' | posthouse bus pub 'team.*' - --json
    """
    content = bus_session.read_payload(payload, text)
    options: dict[str, Any] = {"from_": from_, "reply_to": reply_to, "in_reply_to": in_reply_to}
    options |= {"ttl_s": ttl_s, "wait_s": wait_s}
    arguments = {"shows_refusals": True} | bus_session.bus_arguments(flags)
    result = bus_session.with_bus(directory, output, lambda bus: bus.publish(subject, content, **options), **arguments)
    return bus_session.show_published(output, result)


def req(
    subject: Annotated[str, Parameter(help="The endpoint to send the request to.")],
    payload: bus_session.Payload,
    /,
    *,
    from_: bus_session.Sender = bus_session.DEFAULT_SENDER,
    timeout_s: Annotated[float, Parameter(name="--timeout", help="Seconds to wait for the reply.")] = 30.0,
    text: bus_session.AsText = False,
    directory: bus_session.BusDir = None,
    flags: bus_session.BusFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """Send a request and show the first reply.

    For example:

        posthouse bus req math.double '{"n": 21}'
        posthouse bus req team.builder status --text --timeout 5 --json
    """
    content = bus_session.read_payload(payload, text)
    reply = bus_session.with_bus(
        directory,
        output,
        lambda bus: bus.request(subject, content, from_=from_, timeout_s=timeout_s),
        **bus_session.bus_arguments(flags),
    )
    shown = reply.payload if isinstance(reply.payload, str) else _pretty(reply.payload)
    output.result(bus_session.plain_envelope(reply), shown)


def _pretty(payload: object) -> str:
    import json

    return json.dumps(payload, ensure_ascii=False, indent=2)


def inbox(
    subject: Annotated[str, Parameter(help="The endpoint.")],
    /,
    *,
    limit: Annotated[int, Parameter(help="Maximum number of messages to show.")] = 20,
    after: Annotated[str | None, Parameter(help="Only messages after this id.")] = None,
    ack: Annotated[str | None, Parameter(help="Acknowledge the message with this id instead of listing.")] = None,
    directory: bus_session.BusDir = None,
    output: Output = PLAIN,
) -> int:
    """Show the waiting messages of an endpoint, oldest first; they stay until acknowledged or handled.

    For example:

        posthouse bus inbox team.me
        posthouse bus inbox team.me --limit 100 --json
        posthouse bus inbox team.me --ack 01JCPZ6Q3M0000000000000000
    """
    if ack is not None:
        outcome = bus_session.with_bus(directory, output, lambda bus: bus.ack(subject, ack))
        output.result({"id": ack, "answer": outcome}, f"{ack}  {outcome}")
        return Exit.OK if outcome == "acked" else Exit.REFUSED
    mail = bus_session.with_bus(directory, output, lambda bus: bus.read_inbox(subject, limit, after=after))
    if output.json:
        for envelope in mail:
            output.result(bus_session.plain_envelope(envelope), "")
    elif mail:
        rows = [(e.id, e.created_at, e.from_, e.subject, bus_session.shorten(e.payload)) for e in mail]
        output.result(None, table(("id", "created", "from", "subject", "payload"), rows))
    else:
        output.note("no mail")
    return Exit.OK


def tap(
    pattern: Annotated[str, Parameter(help="Subject pattern to watch; `>` matches everything.")] = ">",
    /,
    *,
    after: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Journal cursor to start after. Default: now.")
    ] = None,
    count: bus_session.Count = None,
    for_s: bus_session.Seconds = None,
    directory: bus_session.BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Show every published message that matches, as it is published; consumes nothing.

    For example:

        posthouse bus tap '>'
        posthouse bus tap 'team.*' --count 10 --json
    """
    bus_session.with_bus(directory, output, lambda bus: watch_bus(bus, pattern, after, count, for_s, output))


async def watch_bus(
    bus: Bus, pattern: str, after: str | None, count: int | None, for_s: float | None, output: Output
) -> None:
    """Show messages until `count` have been shown, `for_s` seconds have passed, or Ctrl-C."""
    import asyncio
    import contextlib

    done = asyncio.Event()
    seen = 0

    async def show(envelope: Envelope) -> None:
        nonlocal seen
        if done.is_set():
            return
        output.result(bus_session.plain_envelope(envelope), bus_session.describe(envelope))
        seen += 1
        if count is not None and seen >= count:
            done.set()

    await bus.tap(pattern, show, after=after)
    output.note(f"watching {pattern} on {bus.path}; stop with Ctrl-C")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), for_s)


def serve(
    subject: Annotated[str, Parameter(help="The endpoint to serve; it is registered if it does not exist.")],
    /,
    *,
    run: Annotated[str | None, Parameter(help="Program that handles each message.")] = None,
    owner: Annotated[str | None, Parameter(help="Owner of the endpoint.")] = None,
    count: bus_session.Count = None,
    for_s: bus_session.Seconds = None,
    directory: bus_session.BusDir = None,
    flags: bus_session.BusFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """Register an endpoint, handle its messages and show them.

    For example:

        posthouse bus serve team.me
        posthouse bus serve math.double --run 'jq ".n * 2"'
        posthouse bus serve team.me --count 1 --json
    """
    handler = EndpointHandler(output, None if run is None else split_command(run), count)
    bus_session.with_bus(
        directory, output, lambda bus: handler.serve(bus, subject, owner, for_s), **bus_session.bus_arguments(flags)
    )


class EndpointHandler:
    """Handles the messages of one endpoint and counts them."""

    def __init__(self, output: Output, run: list[str] | None, count: int | None) -> None:
        self.output = output
        self.run = run
        self.left = count

    async def serve(self, bus: Bus, subject: str, owner: str | None, for_s: float | None) -> None:
        """Serve until `count` messages have been handled, `for_s` seconds have passed, or Ctrl-C."""
        import asyncio
        import contextlib

        done = asyncio.Event()

        async def handle(envelope: Envelope) -> None:
            self.output.result(bus_session.plain_envelope(envelope), bus_session.describe(envelope))
            if self.run is not None:
                await self._reply(bus, envelope, await run_program(self.run, envelope.payload))
            if self.left is not None:
                self.left -= 1
                if self.left <= 0:
                    done.set()

        await bus.register_endpoint(subject, owner=owner)
        unsubscribe = await bus.subscribe(subject, handle)
        self.output.note(f"serving {subject} on {bus.path}; stop with Ctrl-C")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), for_s)
        await unsubscribe()

    async def _reply(self, bus: Bus, envelope: Envelope, printed: str) -> None:
        if envelope.reply_to is not None:
            await bus.publish(envelope.reply_to, _as_payload(printed), from_=envelope.subject)


def split_command(command: str) -> list[str]:
    """Return the words of a command line, or raise a usage error if it is empty or has unbalanced quotes."""
    import shlex

    try:
        words = shlex.split(command)
    except ValueError as failure:
        raise error("usage", text=f"--run cannot be parsed: {failure}", hint="Check the quotes in it.") from failure
    if not words:
        raise error("usage", text="--run names no program", hint="Give a program and its arguments.")
    return words


async def run_program(words: list[str], payload: Any) -> str:
    """Run the program on one payload and return its output; if the program fails, the message fails."""
    import asyncio
    import json

    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
    except OSError as failure:
        text = f"{words[0]} cannot be started: {failure.strerror}"
        raise error("usage", text=text, hint="Check the name of the program, and the PATH.") from failure
    try:
        printed, _ = await process.communicate(json.dumps(payload).encode())
    finally:
        if process.returncode is None:  # the handler timed out or was cancelled
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


app = noun("bus", "Use and administer the message bus of this machine.")
app.command(pub, name="pub")
app.command(tap, name="tap")
app.command(serve, name="serve")
app.command(req, name="req")
app.command(inbox, name="inbox")
app.command(endpoints, name="endpoints")
app.command(access, name="access")
app.command(breakers, name="breakers")
app.command(dead, name="dead")
app.command(limits, name="limits")
app.command(metrics, name="metrics")
app.command(rebuild, name="rebuild")
app.command(recover, name="recover")
app.command(top, name="top")
