"""`posthouse bench`: a load generator for a bus, a relay or a daemon that is in use; it reports rate and latency.

Each target is used through its public client and each message is timed from the call to the durable answer, with
`--concurrency` calls in flight. A run cleans up: the bus endpoint is removed, stored events expire, and a daemon's
messages are marked as seen or dropped. The limits of relay and daemon apply; a throttled run shows the throttled rate.
`make bench` compares posthouse with bare libraries; this command does not.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from posthouse.cli.bus_session import BusDir, with_bus
from posthouse.cli.commands import noun
from posthouse.cli.options import DEFAULT_DAEMON, DEFAULT_MESH_OPTIONS, DaemonOptions, MeshOptions
from posthouse.cli.output import PLAIN, Output
from posthouse.model.errors import error

if TYPE_CHECKING:
    from pathlib import Path

    from posthouse.bus import Bus
    from posthouse.client import Client
    from posthouse.client.daemon import AsyncDaemonClient
    from posthouse.model.envelope import Envelope

_LOAD_GROUP = Group("Load", sort_key=2)
_STORED_KIND = 1
_EPHEMERAL_KIND = 20_000
_EVENT_LIFETIME_S = 600  # stored events of a run expire after this time, and the relay removes them
_CLEANUP_S = 60.0
_POLL_S = 0.02


@Parameter(name="*", group=_LOAD_GROUP)
@dataclass(frozen=True)
class Load:
    """The load of a run; part of the signature of every bench command."""

    messages: Annotated[int, Parameter(validator=Number(gte=1), help="Number of messages to send.")] = 1_000
    size: Annotated[int, Parameter(validator=Number(gte=1), help="Size of each message body in bytes.")] = 256
    concurrency: Annotated[int, Parameter(validator=Number(gte=1, lte=1_000), help="Messages in flight.")] = 64

    @property
    def body(self) -> str:
        return "x" * self.size


DEFAULT_LOAD = Load()
#: Sends one message, given its number; returns False if the target refused it.
Send = Callable[[int], Awaitable[bool]]


def bus(
    *,
    load: Load = DEFAULT_LOAD,
    durability: Annotated[
        Literal["process", "power"],
        Parameter(group=_LOAD_GROUP, help="What an accepted message survives: the end of the process or a power loss."),
    ] = "process",
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Publish to a temporary endpoint of a bus on this machine and handle each message in this process.

    The rate limit and the mailbox size are raised for this run only. The endpoint is removed at the end.

    For example:

        posthouse bench bus
        posthouse bench bus --messages 100000 --size 1024 --concurrency 16
        posthouse bench bus --dir /var/lib/posthouse/bus --durability power --json
    """
    from posthouse.model.reliability import Backpressure, RateLimit, Reliability

    raised = Reliability(
        rate_limit=RateLimit(max_per_window=1_000_000_000),
        backpressure=Backpressure(max_mailbox_size=load.messages + 1),
    )
    _require_bus(directory)

    async def work(opened: Bus) -> dict[str, Any]:
        async with _temporary_endpoint(opened) as subject:

            async def send(_number: int) -> bool:
                result = await opened.publish(subject, load.body, from_=f"{subject}.sender")
                return result.delivered_to > 0

            return await _run(load, send, output)

    report = with_bus(directory, output, work, durability=durability, reliability=raised)
    _answer(output, {"target": "bus", "durability": durability} | report)


def _require_bus(directory: Path | None) -> None:
    """Raise a usage error if there is no bus in the directory: opening one would create it."""
    from posthouse.bus import Bus

    path = Bus(directory).path
    if not (path / "bus.db").exists():
        hint = "Name its directory with --dir, or create a bus with `posthouse bus endpoints add SUBJECT`."
        raise error("usage", text=f"there is no bus in {path}", hint=hint)


@asynccontextmanager
async def _temporary_endpoint(opened: Bus) -> AsyncIterator[str]:
    subject = f"bench.{_run_id()}"

    async def handle(_envelope: Envelope) -> None:
        """Take the message; the bus then removes it from the mailbox."""

    await opened.register_endpoint(subject)
    unsubscribe = await opened.subscribe(subject, handle)
    try:
        yield subject
    finally:
        await _wait_until_empty(opened, subject)
        await unsubscribe()
        await opened.unregister_endpoint(subject, force=True)


async def _wait_until_empty(opened: Bus, subject: str) -> None:
    """Wait until the handler has emptied the mailbox: unregistering would turn the rest into dead letters."""
    ends_at = time.monotonic() + _CLEANUP_S
    while (await opened.depths()).get(subject, 0) and time.monotonic() < ends_at:  # noqa: ASYNC110 - no callback
        await asyncio.sleep(_POLL_S)


def relay(
    *,
    load: Load = DEFAULT_LOAD,
    ephemeral: Annotated[
        bool,
        Parameter(
            group=_LOAD_GROUP, negative=(), show_default=False, help="Send events that the relay does not store."
        ),
    ] = False,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Publish signed events to a relay over one connection.

    Without --ephemeral each answer comes after the event is on disk. Stored events expire after ten minutes; the
    relay removes them then. The relay's rate limit per key applies.

    For example:

        posthouse bench relay
        posthouse bench relay --messages 20000 --concurrency 128 --mesh team
        posthouse bench relay --relay https://relay.example.org --ephemeral --json
    """
    from posthouse.model.clock import system_clock

    mesh = mesh_options.name
    expires_s = system_clock().wall_ns() // 1_000_000_000 + _EVENT_LIFETIME_S
    kind, tags = (_EPHEMERAL_KIND, []) if ephemeral else (_STORED_KIND, [("expiration", str(expires_s))])
    run = _run_id()

    async def work(client: Client) -> dict[str, Any]:
        await client.connect()

        async def send(number: int) -> bool:
            await client.publish(load.body, kind=kind, tags=[*tags, ("bench", f"{run}-{number}")])
            return True

        return await _run(load, send, output)

    report = mesh_options.run(mesh, work)
    _answer(output, {"target": "relay", "mesh": mesh, "ephemeral": ephemeral} | report)


def daemon(
    *,
    load: Load = DEFAULT_LOAD,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Send messages from this host to itself through the daemon.

    Each answer comes after the message is in the daemon's outbox on disk. The messages go into the inbox of this host,
    where they are marked as seen; messages that are still in the outbox after a minute are dropped.

    For example:

        posthouse bench daemon
        posthouse bench daemon --messages 5000 --size 4096 --mesh team
        posthouse bench daemon --concurrency 1 --json
    """
    report = asyncio.run(_load_daemon(load, daemon_options, output))
    _answer(output, {"target": "daemon"} | report)


async def _load_daemon(load: Load, daemon_options: DaemonOptions, output: Output) -> dict[str, Any]:
    run, accepted = _run_id(), 0
    async with daemon_options.client() as client:
        own = (await client.health()).node

        async def send(number: int) -> bool:
            nonlocal accepted
            await client.send(own, load.body, client_message_id=f"bench-{run}-{number}")
            accepted += 1
            return True

        try:
            report = await _run(load, send, output)
        finally:
            output.note("cleaning up")
            seen, dropped = await _clean_up_daemon(client, f"bench-{run}-", accepted)
    return report | {"seen": seen, "dropped": dropped}


async def _clean_up_daemon(client: AsyncDaemonClient, prefix: str, accepted: int) -> tuple[int, int]:
    """Mark the messages of a run as seen as they arrive; drop those that are still in the outbox after a minute."""
    seen, ends_at = 0, time.monotonic() + _CLEANUP_S
    while seen < accepted and time.monotonic() < ends_at:
        arrived = [item.id for item in await client.wait(1.0) if item.client_message_id.startswith(prefix)]
        seen += await client.seen(arrived) if arrived else 0
    dropped = 0
    if seen < accepted:
        for row in await client.outbox(status="pending", limit=accepted):
            if row.client_message_id.startswith(prefix):
                await client.drop(row.id)
                dropped += 1
    return seen, dropped


async def _run(load: Load, send: Send, output: Output) -> dict[str, Any]:
    """Send all messages with at most `concurrency` in flight and return the figures; the first failure ends the run."""
    latencies_ms: list[float] = []
    refused = 0
    numbers = iter(range(load.messages))

    async def work() -> None:
        nonlocal refused
        for number in numbers:
            started = time.perf_counter()
            is_accepted = await send(number)
            refused += not is_accepted
            latencies_ms.append((time.perf_counter() - started) * 1_000)
            on_answer()

    with _progress(output, load.messages) as on_answer:
        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(load.concurrency, load.messages)):
                    workers.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        elapsed_s = time.perf_counter() - started
    return _figures(load, latencies_ms, refused, elapsed_s)


def _figures(load: Load, latencies_ms: list[float], refused: int, elapsed_s: float) -> dict[str, Any]:
    ordered = sorted(latencies_ms)
    return {
        "messages": load.messages,
        "refused": refused,
        "size": load.size,
        "concurrency": load.concurrency,
        "seconds": round(elapsed_s, 3),
        "per_s": round(len(ordered) / elapsed_s, 1),
        "p50_ms": round(_percentile(ordered, 0.5), 3),
        "p99_ms": round(_percentile(ordered, 0.99), 3),
        "max_ms": round(ordered[-1], 3),
    }


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@contextmanager
def _progress(output: Output, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar if stderr is a terminal and the result is for people."""
    if output.json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("sending", total=total)
        yield lambda: bar.advance(task)


def _answer(output: Output, report: dict[str, Any]) -> None:
    rate = f"{report['per_s']:,.0f} messages/s ({report['per_s'] * report['size'] / (1 << 20):,.2f} MiB/s)"
    lines = [
        f"{report['target']}: {report['messages']:,} messages of {report['size']:,} bytes, "
        f"{report['concurrency']} in flight, {report['seconds']:,.2f} s",
        f"rate     {rate}",
        f"latency  p50 {report['p50_ms']:,.2f} ms, p99 {report['p99_ms']:,.2f} ms, max {report['max_ms']:,.2f} ms",
    ]
    if report["refused"]:
        lines.append(f"refused  {report['refused']:,} messages")
    output.result(report, "\n".join(lines))


def _run_id() -> str:
    import secrets

    return secrets.token_hex(6)


app = noun("bench", "Send load to a bus, a relay or a daemon and report rate and latency.")
app.command(bus, name="bus")
app.command(relay, name="relay")
app.command(daemon, name="daemon")
