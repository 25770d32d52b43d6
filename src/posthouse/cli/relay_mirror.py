"""`posthouse relay mirror`: carry the events of a mesh between two relays."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.config import find_home, load_settings
from posthouse.cli.options import KeyFile, RelayOptions, parse_duration, parse_meta
from posthouse.cli.output import PLAIN, Output

if TYPE_CHECKING:
    from posthouse.relay.replication.mirror import Mirror, Mirrored


def mirror(
    source: Annotated[str, Parameter(help="Address of the relay to read.")],
    target: Annotated[str, Parameter(help="Address of the relay to write.")],
    /,
    *,
    mesh: Annotated[str, Parameter(help="Mesh to mirror; it exists on both relays.")],
    filter: Annotated[  # noqa: A002 - the word of the protocol
        str | None, Parameter(help="JSON with authors, kinds, since_ns, until_ns. Default: all events of the mesh.")
    ] = None,
    both: Annotated[bool, Parameter(negative="", help="Mirror in both directions.")] = False,
    once: Annotated[bool, Parameter(negative="", help="Copy the missing events, compare once, and exit.")] = False,
    compare_every: Annotated[str, Parameter(help="How often to compare the relays, such as 10m.")] = "10m",
    key_file: KeyFile = None,
    tls_ca: Annotated[Path | None, Parameter(help="Certificate authorities to trust besides the system's.")] = None,
    output: Output = PLAIN,
) -> None:
    r"""Carry the signed events of a mesh from one relay to another until Ctrl-C or SIGTERM.

    The operators of both relays have to list your node id in relay.mirrors. The target verifies every signature again.
    Mirrored events can be read and searched there; they open no deliveries, and locks stay where they are.

    For example:

        posthouse relay mirror eu.example:7420 us.example:7420 --mesh team --both
        posthouse relay mirror 127.0.0.1:7420 127.0.0.1:7421 --mesh team \
            --filter '{"kinds":[1000]}' --once --json
    """
    from posthouse.cli.log import log_to_stderr
    from posthouse.model.clock import system_clock
    from posthouse.model.mirror import mirror_filter
    from posthouse.relay.replication.mirror import Mirror, MirrorPlan

    wanted = parse_meta(filter, "--filter") or {}
    mirror_filter(mesh, wanted)
    log_to_stderr(load_settings({}))
    first, second = (RelayOptions(relay=url, key_file=key_file, tls_ca=tls_ca).client() for url in (source, target))

    async def work(end: Callable[[Mirror], Any]) -> None:
        async with first, second:
            plan = MirrorPlan(mesh, wanted, both)
            announce = _announce_once(output, plan.mesh, source, target)
            await end(Mirror(first, second, plan, find_home().path / "mirrors", system_clock(), announce))

    interval_s = parse_duration(compare_every)
    asyncio.run(work(lambda each: each.run_once() if once else _run(each, interval_s)))


def _announce_once(output: Output, mesh: str, source: str, target: str) -> Callable[[Mirrored], None]:
    """Return a callback that reports the first comparison of the relays; later calls do nothing."""
    printed = False

    def announce(done: Mirrored) -> None:
        nonlocal printed
        if not printed:
            printed = True
            value = {"mesh": mesh, "source": source, "target": target} | asdict(done)
            text = f"{mesh}: {done.stored} stored, {done.known} known, {done.refused} refused, {done.gone} gone"
            output.result(value, f"{text}, compared with {done.compared_bytes:,} bytes")

    return announce


async def _run(mirror: Mirror, interval_s: float) -> None:
    task = asyncio.ensure_future(mirror.run(interval_s))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        pass
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
