"""`python -m bench.http_floor FOLDER`: an HTTP server that only commits the bare row of a send, synced, and answers.

It uses the daemon's HTTP library and event loop, and listens on a Unix socket in FOLDER. It checks, seals and signs
nothing, so its rate bounds what any daemon can reach that answers one durable send at a time over HTTP.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from bench.floors import OutboxFloor, outbox_floor

_SOCKET = "http"


@contextmanager
def http_floor(folder: Path) -> Iterator[Path]:
    """Run the server as a process of its own; yield its socket."""
    folder.mkdir()
    command = [sys.executable, "-m", "bench.http_floor", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it listens
            yield folder / _SOCKET
        finally:
            process.terminate()


async def _serve(folder: Path, floor: OutboxFloor) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        sent = msgspec.json.decode(await request.read())
        row_id = floor.commit()
        body = msgspec.json.encode({"id": row_id, "client_message_id": sent["client_message_id"]})
        return web.Response(status=202, body=body, content_type="application/json")

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.UnixSite(runner, str(folder / _SOCKET)).start()
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Serve until terminated."""
    folder = Path(sys.argv[1])
    with outbox_floor(folder / "outbox") as floor:
        uvloop.run(_serve(folder, floor))


if __name__ == "__main__":
    main()
