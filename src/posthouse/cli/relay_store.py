"""`posthouse relay` and the store: back up, verify, restore, reindex, check, export and import.

`restore`, `reindex` and `import` take the relay's lock and are refused while it runs; `backup`, `verify`, `check` and
`export` only read and may run at the same time. `verify`, `check`, `export` and `import` exit with 1 if there are
findings. A backup is a copy of the store, or with `--with-key` an archive of store and key; `verify` and `restore` take
both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.config import load_settings
from posthouse.cli.output import PLAIN, Output
from posthouse.cli.relay_service import DataDir, relay_directory
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import error

#: The option of every command that replaces a relay's store.
MarkOption = Annotated[
    Path | None,
    Parameter(
        name="--high-water",
        help="File of the high-water mark. Default: POSTHOUSE_RELAY_HIGH_WATER, else beside the store.",
    ),
]


def store_path(given: Path | None, *, is_needed: bool = True) -> Path:
    """Return the file of the relay's store, or raise a usage error that names it if it does not exist."""
    from posthouse.relay.store.sqlite.store import FILE_NAME

    refuse_server_store()
    path = relay_directory(given) / FILE_NAME
    if is_needed and not path.exists():
        raise error("usage", text=f"there is no store {path}", hint="Give the relay's directory with --data-dir.")
    return path


def refuse_server_store() -> None:
    """Raise if the relay's store is in PostgreSQL: its own tools copy and check it."""
    from posthouse.postgresql.store_url import shown_url

    if (url := load_settings({})["relay.store"].value) is not None:
        raise error("store_on_server", url=shown_url(str(url)))


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

    refuse_server_store()
    directory = private_dir(relay_directory(given))
    lock = StoreLock(directory / "relay", exclusive=True)
    try:
        yield directory
    finally:
        lock.close()


def _note_missing_key(output: Output, directory: Path) -> None:
    """Say what is needed before a relay starts on a store that has come without its key."""
    from posthouse.relay.ops.backup_archive import KEY_MEMBER

    key = directory / KEY_MEMBER
    if not key.exists():
        output.note(f"put the relay's key back to {key}; if it is lost: posthouse keys new --key-file {key}")


def _show_findings(output: Output, path: Path, findings: Sequence[str]) -> int:
    """Show the findings of a check and return the exit code."""
    shown = "\n".join(findings) if findings else f"{path}: no findings"
    output.result({"store": path, "findings": list(findings)}, shown)
    return Exit.REFUSED if findings else Exit.OK


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
    high_water: MarkOption = None,
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
    _note_missing_key(output, directory)


def reindex(*, data_dir: DataDir = None, output: Output = PLAIN) -> None:
    """Write the store anew, with all its indexes, and replace the file; needs as much free space as the store has.

    Refused while the relay runs. Damage in indexes is repaired; damage in other tables is an error and changes nothing.

    For example:

        posthouse relay reindex
        posthouse relay reindex --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.relay.ops.maintenance import reindex_relay

    path = store_path(data_dir)
    with hold_relay_lock(data_dir):
        reindex_relay(path)
    output.result({"store": path, "reindexed": True}, f"{path} reindexed")


def check(*, data_dir: DataDir = None, output: Output = PLAIN) -> int:
    """Check that events, dedupe records, indexes and meshes of a store agree with each other.

    Reads one snapshot; the relay may run. The exit code is 1 if there are findings. If the file is damaged, they name
    what cannot be read. To check every page of the file use `posthouse relay verify`.

    For example:

        posthouse relay check
        posthouse relay check --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.relay.ops.maintenance import check_rules

    path = store_path(data_dir)
    return _show_findings(output, path, check_rules(path))


def export(
    target: Annotated[Path, Parameter(help="File to create; an existing file is never overwritten.")],
    /,
    *,
    data_dir: DataDir = None,
    output: Output = PLAIN,
) -> int:
    """Write everything of a relay's store that can be read, also from a damaged file, as JSON lines.

    The file holds events, meshes and their members, topics, subscriptions and blocks, and the counter of fencing
    tokens; no invites, no held locks and no journal. The exit code is 1 if something could not be read.

    For example:

        posthouse relay export ./relay.jsonl
        posthouse relay export ./relay.jsonl --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.relay.ops.salvage import export_relay

    summary = export_relay(store_path(data_dir), target.absolute())
    lines = [f"{target}  {summary.events:,} events", *summary.unreadable]
    value = {"export": target.absolute(), "events": summary.events, "unreadable": summary.unreadable}
    output.result(value, "\n".join(lines))
    return Exit.REFUSED if summary.unreadable else Exit.OK


def import_(
    source: Annotated[Path, Parameter(help="A file that `posthouse relay export` made.")],
    /,
    *,
    data_dir: DataDir = None,
    high_water: MarkOption = None,
    output: Output = PLAIN,
) -> int:
    """Make a new store from an export; refused while the relay runs, and if there is a store.

    Ids and signatures of all events are verified. Messages that the export does not prove confirmed are delivered
    again. The exit code is 1 if a line was not imported.

    For example:

        posthouse relay import ./relay.jsonl
        posthouse relay import ./relay.jsonl --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.model.clock import system_clock
    from posthouse.relay.ops.salvage import import_relay
    from posthouse.relay.store.high_water import MarkFile
    from posthouse.relay.store.sqlite.store import FILE_NAME

    if not source.exists():
        raise error("usage", text=f"there is no file {source}")
    with hold_relay_lock(data_dir) as directory:
        path = directory / FILE_NAME
        mark_file = MarkFile(mark_path(directory, high_water))
        summary = asyncio.run(import_relay(source, path, system_clock(), mark_file))
    lines = [f"{path}  {summary.events:,} events", *summary.refused]
    output.result({"store": path, "events": summary.events, "refused": summary.refused}, "\n".join(lines))
    _note_missing_key(output, directory)
    return Exit.REFUSED if summary.refused else Exit.OK
