"""`posthouse relay follow` and `promote`: keep a copy of another relay's store, and make the copy a relay's store.

Both hold the lock of the directory, as a relay does: only one of `up`, `follow` and `promote` works in it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.config import load_settings
from posthouse.cli.options import KeyFile, RelayOptions
from posthouse.cli.output import PLAIN, Output
from posthouse.cli.relay_service import DataDir
from posthouse.cli.relay_store import MarkOption, hold_relay_lock, mark_path, note_missing_key, refuse_server_store
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.relay.http.api_server import MetricsListener
    from posthouse.relay.listen import ListenAddress
    from posthouse.relay.replication.follower import Follower

TlsCa = Annotated[Path | None, Parameter(help="Certificate authorities to trust besides the system's.")]


def follow(
    url: Annotated[str, Parameter(help="Address of the relay to follow.")],
    /,
    *,
    data_dir: DataDir = None,
    metrics_listen: Annotated[
        str | None, Parameter(help="Loopback address and port, or path of a Unix socket, that serves /metrics.")
    ] = None,
    key_file: KeyFile = None,
    tls_ca: TlsCa = None,
    output: Output = PLAIN,
) -> None:
    """Keep a copy of a relay's store in a directory, a few milliseconds behind, until Ctrl-C or SIGTERM.

    The operator of that relay has to list your node id in relay.followers. The first line says that the copy is
    complete; the log goes to stderr. After a restart of either side it continues where it stopped. The relay's key is
    not copied: put it into the directory as key.json before you promote the copy.

    For example:

        posthouse relay follow https://relay.example:7420 --data-dir ./standby
        posthouse relay follow relay.example:7420 --metrics-listen 127.0.0.1:9100
    """
    from posthouse.cli.log import log_to_stderr
    from posthouse.relay.listen import parse_metrics_listen

    values = load_settings({"relay.metrics_listen": metrics_listen})
    log_to_stderr(values)
    listen = values["relay.metrics_listen"].value
    where = parse_metrics_listen(None if listen is None else str(listen))
    client = RelayOptions(relay=url, key_file=key_file, tls_ca=tls_ca).client()
    refuse_server_store()
    with hold_relay_lock(data_dir) as directory:
        announce = _announce_once(output, directory, client.url.origin)
        asyncio.run(_follow(client, directory, announce, where))


def _announce_once(output: Output, directory: Path, leader: str) -> Callable[[int], None]:
    """Return a callback that reports once that the copy is complete; later calls do nothing."""
    from posthouse.relay.store.sqlite.store import COPY_NAME

    printed = False

    def announce(head: int) -> None:
        nonlocal printed
        if not printed:
            printed = True
            copy = directory / COPY_NAME
            output.result({"copy": copy, "leader": leader, "seq": head}, f"{copy} follows {leader}, complete at {head}")

    return announce


async def _follow(
    client: Client, directory: Path, announce: Callable[[int], None], where: ListenAddress | Path | None
) -> None:
    from posthouse.model.clock import system_clock
    from posthouse.relay.replication.follower import Follower

    async with client:
        follower = Follower(client, directory, system_clock(), announce)
        listener = await _serve_metrics(follower, where)
        task = asyncio.ensure_future(follower.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            pass
        finally:
            if listener is not None:
                await listener.close()


async def _serve_metrics(follower: Follower, where: ListenAddress | Path | None) -> MetricsListener | None:
    from posthouse.relay.http.api_server import listen_for_follower
    from posthouse.relay.metrics import Meters

    if where is None:
        return None
    meters = Meters()
    follower.watch_metrics(meters)
    return await listen_for_follower(meters, where)


def promote(
    *,
    force: Annotated[
        bool, Parameter(negative="", help="Promote even if the relay that the copy follows still answers.")
    ] = False,
    data_dir: DataDir = None,
    high_water: MarkOption = None,
    output: Output = PLAIN,
) -> None:
    """Make the copy of `posthouse relay follow` the store of a relay; then start it with `posthouse relay up`.

    First stop the relay that the copy follows, permanently: two relays must not continue one history. The store gets a
    new epoch, so clients learn that the last transactions may be missing; fencing tokens rise above all former ones.

    For example:

        posthouse relay promote --data-dir /var/lib/posthouse/standby
        posthouse relay promote --data-dir ./standby --json
    """
    from posthouse.model.clock import system_clock
    from posthouse.relay.replication.followed_copy import promote_copy, read_leader
    from posthouse.relay.store.high_water import MarkFile
    from posthouse.relay.store.sqlite.store import FILE_NAME

    refuse_server_store()
    with hold_relay_lock(data_dir) as directory:
        leader = read_leader(directory)
        if leader is not None and not force and _answers(leader.url, leader.relay):
            raise error("leader_answers", leader=leader.url)
        epoch = promote_copy(directory, system_clock(), MarkFile(mark_path(directory, high_water)))
    path = directory / FILE_NAME
    output.result({"store": path, "epoch": epoch}, f"{path} promoted, epoch {epoch}")
    note_missing_key(output, directory)


def _answers(url: str, relay: str) -> bool:
    """Return True if the relay with this node id serves at an address."""
    options = RelayOptions(relay=url)

    async def ask() -> bool:
        from posthouse.client import Client, Pins, parse_relay_url
        from posthouse.keys import NodeKey

        place = parse_relay_url(url, allow_plain=True)
        async with Client(place, NodeKey.generate(), pins=Pins(None), options=options.options()) as client:
            return (await client.info()).get("relay") == relay

    try:
        return asyncio.run(ask())
    except PosthouseError:
        return False
