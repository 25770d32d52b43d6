"""Three relays on one PostgreSQL behind a proxy: messages continue, and locks stay held, when one relay is killed.

It needs the extra `postgresql`. Run it with `python examples/cluster/main.py`, which starts a PostgreSQL of its own
from Debian's package `postgresql`, or with the URL of an empty database:
`python examples/cluster/main.py postgresql://USER@HOST/DATABASE`.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from itertools import cycle
from pathlib import Path

from posthouse import Client, NodeKey
from posthouse.client import Pins
from posthouse.keys import keyfile

ALICE, BOB = NodeKey.generate(), NodeKey.generate()
RELAYS = 3


async def main(ports: Sequence[int], relays: Sequence[subprocess.Popen[str]], folder: Path) -> None:
    async with proxy(ports) as address:
        pins = Pins(folder / "clients" / "pins.json")
        async with (
            Client(address, ALICE, pins=pins) as alice,
            Client(address, BOB, pins=pins) as bob,
            await bob.receive() as mailbox,
            alice.lock("the stable"),
        ):
            for number in range(1, 7):
                if number == 4:
                    relays[0].kill()
                    say("one of three relays is killed")
                await alice.send(BOB.node, f"letter {number}")
                delivery = await asyncio.wait_for(anext(mailbox), 30)
                mailbox.confirm(delivery)
                say(f"bob reads: {delivery.body}")
            say("alice still holds the lock")


@asynccontextmanager
async def proxy(ports: Sequence[int]) -> AsyncIterator[str]:
    """Spread connections over the relays that can be reached; a real proxy asks their /readyz."""
    turns = cycle(ports)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in (next(turns) for _ in ports):
            with suppress(OSError, asyncio.CancelledError):  # the relay is gone, or the example ends
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
                return
        writer.close()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextmanager
def running_relay(folder: Path, store: str, port: int, key: NodeKey) -> Iterator[subprocess.Popen[str]]:
    """Run one relay of several: the same key and database, a URL of its own."""
    keyfile.create(folder / "key.json", key)
    command = [sys.executable, "-m", "posthouse.cli.main", "relay", "up", "--json", "--data-dir", str(folder)]
    own = ["--listen", f"127.0.0.1:{port}", "--store", store, "--advertise", f"http://127.0.0.1:{port}"]
    log = folder.with_suffix(".log")
    with (
        log.open("w") as errors,
        subprocess.Popen([*command, *own], stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            if not process.stdout.readline():  # else the relay says that it is ready; why not: an extra may be missing
                failure = json.loads(log.read_text().splitlines()[-1])
                sys.exit(f"{failure['detail']}\n{failure['hint']}")
            yield process
        finally:
            process.terminate()


@contextmanager
def running_postgresql(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL with a data directory and a socket in a folder; as root, as the user `nobody`."""
    found = sorted(Path("/usr/lib/postgresql").glob("[0-9]*"), key=lambda each: int(each.name))
    if not found:
        sys.exit("Install Debian's package postgresql, or give the URL of a database.")
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    os.chown(folder, user, -1)
    data, programs = folder / "data", found[-1] / "bin"
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "posthouse", "-A", "trust", "-E", "UTF8", "--locale=C"]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder, user=user)
    options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        user=user,
    )
    try:
        until = time.monotonic() + 60
        while subprocess.run([programs / "pg_isready", "-q", "-h", folder]).returncode and time.monotonic() < until:
            time.sleep(0.1)
        yield f"postgresql://posthouse@/postgres?host={folder}"
    finally:
        server.terminate()
        server.wait(30)


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def run(database: str | None) -> None:
    folder = Path(tempfile.mkdtemp(prefix="posthouse-cluster-"))
    folder.chmod(0o755)  # PostgreSQL may run as another user
    try:
        with ExitStack() as stack:
            place = folder / "postgresql"
            place.mkdir()
            store = database or stack.enter_context(running_postgresql(place))
            key, ports = NodeKey.generate(), [free_port() for _ in range(RELAYS)]
            relays = [stack.enter_context(running_relay(folder / str(port), store, port, key)) for port in ports]
            say(f"{RELAYS} relays share one database")
            asyncio.run(main(ports, relays, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    run(sys.argv[1] if len(sys.argv) > 1 else None)
