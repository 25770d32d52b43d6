"""`posthouse console`: pages in the browser for people who supervise agents.

The console is a client: it listens on loopback while the command runs, and uses the daemon and the relay with the
rights of this user's key. Relay and daemon open no additional ports.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import webbrowser
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.config import load_settings
from posthouse.cli.options import DEFAULT_DAEMON, DEFAULT_RELAY, DaemonOptions, RelayOptions
from posthouse.cli.output import PLAIN, Output
from posthouse.extras import install_hint
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.console.console_server import ConsoleServer

PORT_MAX = 65_535


def console(
    *,
    port: Annotated[
        int, Parameter(validator=Number(gte=0, lte=PORT_MAX), help="Port on 127.0.0.1. Default: a free one.")
    ] = 0,
    browser: Annotated[bool, Parameter(help="Open the link in a browser.")] = True,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Watch agents, conversations, queues, locks and health in a browser, until Ctrl-C.

    The link that it prints works once, for one minute; Enter prints a new one. Other users of this machine cannot use
    the console. The journal records what you do there under your key, as `via console`.

    For example:

        posthouse console
        posthouse console --mesh team --no-browser
        posthouse console --port 7430 --no-browser --json
    """
    _require_extra()
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(_serve(port, daemon_options, relay_options, output, opens_browser=browser))


def _require_extra() -> None:
    for library in ("aiohttp", "jinja2"):
        try:
            import_module(library)
        except ModuleNotFoundError as missing:
            raise error("extra_missing", library=library, hint=install_hint("console")) from missing


async def _serve(
    port: int, daemon_options: DaemonOptions, relay_options: RelayOptions, output: Output, *, opens_browser: bool
) -> None:
    from posthouse.cli.trace import bus_steps
    from posthouse.client.daemon import AsyncDaemonClient
    from posthouse.client.daemon.locate import DaemonState, daemon_state
    from posthouse.console.console_server import ConsoleServer
    from posthouse.console.upstream import Upstream
    from posthouse.model.clock import system_clock
    from posthouse.pipeline.audit.finding import read_last_audit
    from posthouse.pipeline.lake.storage import open_storage

    mesh = daemon_options.chosen_mesh()
    clock = system_clock()
    daemon = AsyncDaemonClient(daemon_options.location(), agent=daemon_options.agent)
    upstream = Upstream(daemon, relay_options.client(mesh), clock)
    settings = load_settings({})
    upstream.find_bus_steps = partial(bus_steps, settings.path("bus.dir"))
    lake = open_storage(settings.text("pipeline.lake"))
    upstream.read_last_audit = partial(read_last_audit, lake.host_directory)
    server = ConsoleServer(upstream, clock, port)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await server.start()
    if daemon_state(daemon_options.location()) is DaemonState.ABSENT:
        output.note("no daemon runs on this host: parts of the pages stay empty until `posthouse up` starts it")
    try:
        _announce(server, output, opens_browser=opens_browser)
        if sys.stdin is not None and sys.stdin.isatty():
            loop.add_reader(sys.stdin, _print_again, server, output)
        await ended.wait()
    finally:
        await server.stop()


def _announce(server: ConsoleServer, output: Output, *, opens_browser: bool) -> None:
    link = server.new_link()
    value = {"url": server.origin, "link": link, "mesh": server.context.upstream.mesh}
    output.result(value, f"the console of mesh {value['mesh']}: {link}")
    output.note("the link works once, for a minute; Enter prints a new one, Ctrl-C ends the console")
    if opens_browser and not webbrowser.open(link):
        output.note("no browser was found: open the link yourself")


def _print_again(server: ConsoleServer, output: Output) -> None:
    if sys.stdin.readline():
        output.result({"link": (link := server.new_link())}, link)
    else:
        asyncio.get_running_loop().remove_reader(sys.stdin)
