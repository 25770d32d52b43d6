"""`posthouse relay`: run a relay, and back up, verify, restore, reindex and check its store.

`restore` and `reindex` take the relay's lock and are refused while it runs; `backup`, `verify` and `check` only read
and may run at the same time. `verify` and `check` exit with 1 if there are findings. A backup is a copy of the store,
or with `--with-key` an archive of store and key; `verify` and `restore` take both.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.commands import noun
from posthouse.cli.config import Settings, find_home, load_settings, setting_tokens
from posthouse.cli.options import DEFAULT_RELAY, RelayOptions
from posthouse.cli.output import PLAIN, Output
from posthouse.cli.relay_service import (
    LOG_NAME,
    DataDir,
    describe_run,
    down,
    install_service,
    read_run,
    relay_directory,
    status,
    uninstall_service,
    write_run,
)
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.cli.config import Flags as RelayFlags
    from posthouse.client import RelayUrl
    from posthouse.model.settings_sources import Resolved
    from posthouse.relay.server import RelayServer, ServerSettings
else:
    from posthouse.cli.relay_service import RelayFlags


def store_path(given: Path | None, *, is_needed: bool = True) -> Path:
    """Return the file of the relay's store, or raise a usage error that names it if it does not exist."""
    from posthouse.relay.store.sqlite.store import FILE_NAME

    path = relay_directory(given) / FILE_NAME
    if is_needed and not path.exists():
        raise error("usage", text=f"there is no store {path}", hint="Give the relay's directory with --data-dir.")
    return path


def mark_path(directory: Path, given: Path | None) -> Path:
    """Return the file of the high-water mark of the relay in `directory`."""
    from posthouse.relay.store.high_water import FILE_NAME

    values = load_settings({"relay.high_water": None if given is None else str(given)})
    return values.optional_path("relay.high_water") or directory / FILE_NAME


@contextmanager
def hold_relay_lock(given: Path | None) -> Iterator[Path]:
    """Hold the relay's lock and yield its directory; raises store_in_use while a relay runs there."""
    from posthouse.files import private_dir
    from posthouse.sqlite.store_lock import StoreLock

    directory = private_dir(relay_directory(given))
    lock = StoreLock(directory / "relay", exclusive=True)
    try:
        yield directory
    finally:
        lock.close()


def _show_findings(output: Output, path: Path, findings: Sequence[str]) -> int:
    """Show the findings of a check and return the exit code."""
    shown = "\n".join(findings) if findings else f"{path}: no findings"
    output.result({"store": path, "findings": list(findings)}, shown)
    return Exit.REFUSED if findings else Exit.OK


def up(
    *,
    detach: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Run in the background; return when it is ready.")
    ] = False,
    new: Annotated[
        bool, Parameter(negative="", help="Begin an empty store although the relay had one that is lost.")
    ] = False,
    flags: RelayFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """Run a relay until Ctrl-C or SIGTERM; it prints its address when it is ready.

    To listen on other addresses than loopback it needs TLS, or a proxy that terminates TLS, and an administrator. In
    the background it logs to relay.log in its directory; `relay down` stops it. SIGHUP makes it read settings and
    certificate again; on a terminal, SIGHUP ends it, because the terminal was closed.
    `--new` is refused when there is a store, so that it does no harm in a unit file.

    For example:

        posthouse relay up
        posthouse relay up --detach
        posthouse relay up --listen 127.0.0.1:0 --data-dir ./relay --json
        posthouse relay up --listen 0.0.0.0:7420 --tls-cert cert.pem --tls-key key.pem --admin ed25519:...
    """
    from posthouse.relay.process import run_relay, server_settings

    given = {} if flags is None else flags.given()
    if detach:
        _detach(given, output, is_new=new)
        return

    configure_log = _open_log(load_settings(given))

    def load() -> tuple[Mapping[str, Resolved], ServerSettings]:
        values = load_settings(given)
        settings = server_settings(values, _own_node(), is_new=new)
        configure_log(values)
        return values, settings

    _, settings = load()
    run_relay(settings, lambda server: _announce(server, output), None if sys.stderr.isatty() else load)


def _detach(given: dict[str, Any], output: Output, *, is_new: bool) -> None:
    from posthouse.cli.detach import start_detached
    from posthouse.files import private_dir

    values = load_settings(given)
    directory = values.path("relay.data_dir").absolute()
    if running := read_run(directory):
        output.result(running, f"{_ready_line(running)} already")
        return
    if values["relay.log_file"].value is None:
        given |= {"relay.data_dir": str(directory), "relay.log_file": str(private_dir(directory) / LOG_NAME)}
    words = ("relay", "up", "--json", *(("--new",) if is_new else ()), *setting_tokens(given))
    started = start_detached("relay", words, slow="relay_start_slow")
    output.result(started, _ready_line(started))
    output.note(
        f"its log is {given.get('relay.log_file') or values.text('relay.log_file')}; stop it: posthouse relay down"
    )


def _open_log(values: Settings) -> Callable[[Settings], None]:
    """Return the function that configures the log, to stderr or to a file that is opened here."""
    from posthouse.cli.log import LogFile, log_to_file, log_to_stderr

    path = values.optional_path("relay.log_file")
    return log_to_stderr if path is None else partial(log_to_file, LogFile(path))


def _own_node() -> str | None:
    """Return the node id of this user, who administers the relay by default, or None without a key."""
    from posthouse.keys import keyfile

    path = find_home().key
    return keyfile.load(path).node if path.exists() else None


def _announce(server: RelayServer, output: Output) -> None:
    run = describe_run(server)
    write_run(server.settings.data_dir, run)
    output.result(run, _ready_line(run))


def _ready_line(run: dict[str, Any]) -> str:
    return f"relay {run['relay']} listens on {run['url']}"


_SHOWN = ("relay", "version", "epoch", "features", "is_test_clock")


def info(
    relay: Annotated[
        str | None, Parameter(show_default=False, help="Address of the relay: HOST:PORT or a URL.")
    ] = None,
    /,
    *,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Show the properties and limits of a relay, and if its key is the pinned one; needs no key of yours.

    For example:

        posthouse relay info
        posthouse relay info relay.example:7420 --json
    """
    from posthouse.client import Pins, parse_relay_url

    url = (
        relay_options.url()
        if relay is None
        else parse_relay_url(relay, allow_plain=relay_options.options().allow_plain)
    )
    found = asyncio.run(_fetch_info(url, relay_options))
    pinned = Pins.of_home().relay(url.origin)
    state = "not pinned" if pinned is None else "pinned" if pinned == found.get("relay") else f"CHANGED from {pinned}"
    lines = [f"url      {url.origin}", f"key      {state}"]
    lines += [f"{name:<8} {found.get(name)}" for name in _SHOWN if name in found]
    lines += [f"limit    {name} {value}" for name, value in dict(found.get("limits") or {}).items()]
    output.result(found | {"url": url.origin, "pinned": pinned}, "\n".join(lines))


async def _fetch_info(url: RelayUrl, relay_options: RelayOptions) -> dict[str, Any]:
    from posthouse.client import Client, Pins
    from posthouse.keys import NodeKey

    # a throw-away key and no pins: the request does not reveal this node
    async with Client(url, NodeKey.generate(), pins=Pins(None), options=relay_options.options()) as client:
        return await client.info()


def backup(
    target: Annotated[Path, Parameter(help="File to create; an existing file is never overwritten.")],
    /,
    *,
    with_key: Annotated[
        bool, Parameter(negative="", help="Write one archive with the store and the relay's key; keep it secret.")
    ] = False,
    data_dir: DataDir = None,
    output: Output = PLAIN,
) -> None:
    """Write a consistent copy of a relay's store, while the relay runs or not.

    The relay's key is included only with `--with-key`: whoever has it can pose as the relay.

    For example:

        posthouse relay backup /backups/relay-2026-03-01.db
        posthouse relay backup --with-key /backups/relay-2026-03-01.tar
        posthouse relay backup ./relay.copy --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.relay.ops.backup_archive import KEY_MEMBER, write_archive
    from posthouse.relay.ops.maintenance import backup_relay

    source = store_path(data_dir)
    if with_key:
        write_archive(source, source.with_name(KEY_MEMBER), target.absolute())
    else:
        backup_relay(source, target.absolute())
    size = target.stat().st_size
    value = {"store": source, "backup": target.absolute(), "bytes": size, "has_key": with_key}
    output.result(value, f"{target}  {size:,} bytes")
    if not with_key:
        output.note(
            "also back up key.json, or use --with-key: with a new key the clients have to trust the relay again"
        )


def verify(
    file: Annotated[Path | None, Parameter(show_default=False, help="A backup. Default: the relay's store.")] = None,
    /,
    *,
    data_dir: DataDir = None,
    output: Output = PLAIN,
) -> int:
    """Check a store or a backup: the integrity of the database, the journal, and the relay's tables.

    Nothing is changed and the relay may run. The exit code is 1 if there are findings.

    For example:

        posthouse relay verify
        posthouse relay verify /backups/relay-2026-03-01.db --json
    """
    from posthouse.relay.ops.backup_archive import open_backup
    from posthouse.relay.ops.maintenance import check_relay

    path = store_path(data_dir) if file is None else file.absolute()
    if not path.exists():
        raise error("usage", text=f"there is no file {path}")
    with open_backup(path, path.parent) as backup:
        return _show_findings(output, path, check_relay(backup.store))


def restore(
    backup: Annotated[
        Path | None, Parameter(show_default=False, help="A file that `posthouse relay backup` made.")
    ] = None,
    /,
    *,
    in_place: Annotated[
        bool, Parameter(negative="", help="Go on from the file relay.db that is there, an older copy.")
    ] = False,
    data_dir: DataDir = None,
    high_water: Annotated[
        Path | None,
        Parameter(help="File of the high-water mark. Default: POSTHOUSE_RELAY_HIGH_WATER, else beside the store."),
    ] = None,
    output: Output = PLAIN,
) -> None:
    """Replace the store of a relay by a backup; refused while the relay runs.

    The store gets a new epoch, so that clients with cursors past the backup get an error instead of missing events.
    If relay.db was put back by other means (a file copy, a snapshot of the disk), `--in-place` does the same to it.

    For example:

        posthouse relay restore /backups/relay-2026-03-01.db
        posthouse relay restore --in-place
        posthouse relay restore ./relay.copy --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.files import create_atomic
    from posthouse.model.clock import system_clock
    from posthouse.relay.ops.backup_archive import KEY_MEMBER, missing_key, open_backup
    from posthouse.relay.ops.maintenance import restore_relay
    from posthouse.relay.store.high_water import MarkFile
    from posthouse.relay.store.sqlite.store import FILE_NAME

    if in_place == (backup is not None):
        raise error("usage", text="give either a backup or --in-place", hint="`posthouse relay restore FILE`")
    if backup is not None and not backup.exists():
        raise error("usage", text=f"there is no file {backup}")
    if in_place:
        store_path(data_dir)
    with hold_relay_lock(data_dir) as directory:
        path = directory / FILE_NAME
        mark = MarkFile(mark_path(directory, high_water))
        if backup is None:
            epoch, key = restore_relay(None, path, system_clock(), mark), None
        else:
            with open_backup(backup.absolute(), directory) as opened:
                key = missing_key(opened, directory)
                epoch = restore_relay(opened.store, path, system_clock(), mark)
        if key is not None:
            create_atomic(directory / KEY_MEMBER, key)
    source = None if backup is None else backup.absolute()
    value = {"store": path, "backup": source, "epoch": epoch, "key_restored": key is not None}
    output.result(value, f"{path} restored, epoch {epoch}" + ("" if key is None else ", with its key"))


def reindex(*, data_dir: DataDir = None, output: Output = PLAIN) -> None:
    """Rebuild the tag index, the address aliases and the latest event of each address, in one transaction.

    Refused while the relay runs: the transaction would block it.

    For example:

        posthouse relay reindex
        posthouse relay reindex --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.model.clock import system_clock
    from posthouse.relay.ops.maintenance import reindex_relay

    path = store_path(data_dir)
    with hold_relay_lock(data_dir):
        reindex_relay(path, system_clock())
    output.result({"store": path, "reindexed": True}, f"{path} reindexed")


def check(*, data_dir: DataDir = None, output: Output = PLAIN) -> int:
    """Check that events, dedupe records, indexes and meshes of a store agree with each other.

    Reads one snapshot; the relay may run. The exit code is 1 if there are findings. To check the database file itself
    use `posthouse relay verify`.

    For example:

        posthouse relay check
        posthouse relay check --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.relay.ops.maintenance import RULES
    from posthouse.sqlite.connection import open_reader

    path = store_path(data_dir)
    db = open_reader(path)
    try:
        db.execute("BEGIN")
        findings = [finding for rule in RULES for finding in rule(db)]
        db.execute("ROLLBACK")
    finally:
        db.close()
    return _show_findings(output, path, findings)


app = noun("relay", "Run a relay and maintain its store.")
app.command(up, name="up")
app.command(down, name="down")
app.command(status, name="status")
app.command(info, name="info")
app.command(backup, name="backup")
app.command(verify, name="verify")
app.command(restore, name="restore")
app.command(reindex, name="reindex")
app.command(check, name="check")
app.command(install_service, name="install-service")
app.command(uninstall_service, name="uninstall-service")
