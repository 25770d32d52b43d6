"""`posthouse relay`, commands about the store: back up, verify, restore, reindex, check, export, import and migrate.

`restore`, `reindex`, `import` and `migrate` take the relay's lock and are refused while it runs; `backup`, `verify`,
`check` and `export` only read and may run at the same time. `verify`, `check`, `export` and `import` exit with 1 if
there are findings. A backup is a copy of the store, or with `--with-key` an archive of store and key; `verify` and
`restore` take both. If `relay.store` names a database, the commands that read copy it to a SQLite file, and `restore`
and `import` write to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.config import load_settings
from posthouse.cli.output import PLAIN, Output
from posthouse.cli.relay_service import DataDir, relay_directory
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.model.clock import Clock
    from posthouse.relay.ops.move_store import Moved
    from posthouse.relay.ops.salvage import Imported
    from posthouse.relay.store.high_water import MarkFile

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

    path = relay_directory(given) / FILE_NAME
    if is_needed and not path.exists():
        raise error("usage", text=f"there is no store {path}", hint="Give the relay's directory with --data-dir.")
    return path


def refuse_server_store() -> None:
    """Raise if the relay's store is in PostgreSQL, whose own tools do the work of this command."""
    from posthouse.postgresql.store_url import shown_url

    if (url := server_url()) is not None:
        raise error("store_on_server", url=shown_url(url))


def server_url() -> str | None:
    """Return the URL of the relay's store, None if it is a file."""
    from posthouse.postgresql.store_url import validate_store_url

    url = load_settings({})["relay.store"].value
    return None if url is None else validate_store_url(str(url))


@contextmanager
def readable_store(given: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield a file with the relay's store and its display name; for a store in PostgreSQL it is a temporary copy."""
    from posthouse.postgresql.store_url import driver_required, shown_url

    if (url := server_url()) is None:
        path = store_path(given)
        yield path, str(path)
        return
    with driver_required():
        from posthouse.relay.ops.server_copy import temporary_copy
    with temporary_copy(url) as copy:
        yield copy, shown_url(url)


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


def note_missing_key(output: Output, directory: Path) -> None:
    """Print a note if the directory has no key, which a relay needs to start on the store."""
    from posthouse.relay.ops.backup_archive import KEY_MEMBER

    key = directory / KEY_MEMBER
    if not key.exists():
        output.note(f"restore the relay's key to {key}; if it is lost: posthouse keys new --key-file {key}")


def _show_findings(output: Output, store: str, findings: Sequence[str]) -> int:
    """Show the findings of a check and return the exit code."""
    shown = "\n".join(findings) if findings else f"{store}: no findings"
    output.result({"store": store, "findings": list(findings)}, shown)
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
    """Write a consistent copy of a relay's store, whether or not the relay runs.

    The copy is a SQLite file, even if the store is in PostgreSQL; large databases are better copied by pg_basebackup.
    The relay's key is included only with `--with-key`: anyone who has it can pose as the relay.

    For example:

        posthouse relay backup /backups/relay-2026-03-01.db
        posthouse relay backup --with-key /backups/relay-2026-03-01.tar
        posthouse relay backup ./relay.copy --data-dir /var/lib/posthouse/relay
    """
    from posthouse.relay.ops.backup_archive import KEY_MEMBER, write_archive
    from posthouse.relay.ops.maintenance import backup_relay

    if (url := server_url()) is None:
        path = store_path(data_dir)
        source, copy = str(path), partial(backup_relay, path)
    else:
        source, copy = _server_backup(url)
    if with_key:
        write_archive(copy, relay_directory(data_dir) / KEY_MEMBER, target.absolute())
    else:
        copy(target.absolute())
    size = target.stat().st_size
    value = {"store": source, "backup": target.absolute(), "bytes": size, "has_key": with_key}
    output.result(value, f"{target}  {size:,} bytes")
    if not with_key:
        output.note(
            "also back up key.json, or use --with-key: with a new key the clients have to trust the relay again"
        )


def _server_backup(url: str) -> tuple[str, partial[None]]:
    from posthouse.postgresql.store_url import driver_required, shown_url

    with driver_required():
        from posthouse.relay.ops.server_copy import backup_server
    return shown_url(url), partial(backup_server, url)


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

    if file is None:
        with readable_store(data_dir) as (path, shown):
            return _show_findings(output, shown, check_relay(path))
    path = file.absolute()
    if not path.exists():
        raise error("usage", text=f"there is no file {path}")
    with open_backup(path, path.parent) as backup:
        return _show_findings(output, str(path), check_relay(backup.store))


def restore(
    backup: Annotated[
        Path | None, Parameter(show_default=False, help="A file that `posthouse relay backup` made.")
    ] = None,
    /,
    *,
    in_place: Annotated[
        bool, Parameter(negative="", help="Continue from the relay.db in the directory, which is an older copy.")
    ] = False,
    data_dir: DataDir = None,
    high_water: MarkOption = None,
    output: Output = PLAIN,
) -> None:
    """Replace the store of a relay with a backup; refused while the relay runs.

    The store gets a new epoch, so that clients with cursors past the backup get an error instead of missing events.
    If relay.db was put back by other means (a file copy, a snapshot of the disk), `--in-place` begins the new epoch.

    For example:

        posthouse relay restore /backups/relay-2026-03-01.db
        posthouse relay restore --in-place
        posthouse relay restore ./relay.copy --data-dir /var/lib/posthouse/relay
    """
    from posthouse.files import create_atomic
    from posthouse.model.clock import system_clock
    from posthouse.relay.ops.backup_archive import KEY_MEMBER, missing_key, open_backup
    from posthouse.relay.store.high_water import MarkFile

    if in_place == (backup is not None):
        raise error("usage", text="give either a backup or --in-place", hint="`posthouse relay restore FILE`")
    if backup is not None and not backup.exists():
        raise error("usage", text=f"there is no file {backup}")
    with hold_relay_lock(data_dir) as directory:
        store, restore_from = _restoring(data_dir, in_place=in_place)
        mark = MarkFile(mark_path(directory, high_water))
        if backup is None:
            epoch, key = restore_from(None, system_clock(), mark), None
        else:
            with open_backup(backup.absolute(), directory) as opened:
                key = missing_key(opened, directory)
                epoch = restore_from(opened.store, system_clock(), mark)
        if key is not None:
            create_atomic(directory / KEY_MEMBER, key)
    source = None if backup is None else backup.absolute()
    value = {"store": store, "backup": source, "epoch": epoch, "key_restored": key is not None}
    output.result(value, f"{store} restored, epoch {epoch}" + ("" if key is None else ", with its key"))
    note_missing_key(output, directory)


def _restoring(data_dir: Path | None, *, in_place: bool) -> tuple[str, Callable[[Path | None, Clock, MarkFile], str]]:
    """Return the name of the relay's store, and the function that restores it."""
    from posthouse.postgresql.store_url import driver_required, shown_url
    from posthouse.relay.ops.maintenance import restore_relay

    if (url := server_url()) is None:
        path = store_path(data_dir, is_needed=in_place)
        return str(path), lambda backup, clock, mark: restore_relay(backup, path, clock, mark)
    with driver_required():
        from posthouse.relay.ops.server_copy import restore_server
    return shown_url(url), lambda backup, clock, mark: restore_server(backup, url, clock, mark)


def reindex(*, data_dir: DataDir = None, output: Output = PLAIN) -> None:
    """Rewrite the store with all its indexes, and replace the file; needs as much free space as the store takes.

    Refused while the relay runs. Damage in indexes is repaired; damage in other tables is an error and changes nothing.

    For example:

        posthouse relay reindex
        posthouse relay reindex --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.relay.ops.maintenance import reindex_relay

    refuse_server_store()
    path = store_path(data_dir)
    with hold_relay_lock(data_dir):
        reindex_relay(path)
    output.result({"store": path, "reindexed": True}, f"{path} reindexed")


def check(*, data_dir: DataDir = None, output: Output = PLAIN) -> int:
    """Check that events, dedupe records, indexes and meshes of a store agree with each other.

    Reads one snapshot; the relay may run. The exit code is 1 if there are findings. If the file is damaged, they name
    the parts that cannot be read. To check every page of the file use `posthouse relay verify`.

    For example:

        posthouse relay check
        posthouse relay check --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.relay.ops.maintenance import check_rules

    with readable_store(data_dir) as (path, shown):
        return _show_findings(output, shown, check_rules(path))


def export(
    target: Annotated[Path, Parameter(help="File to create; an existing file is never overwritten.")],
    /,
    *,
    data_dir: DataDir = None,
    output: Output = PLAIN,
) -> int:
    """Write all readable content of a relay's store as JSON lines, even if the file is damaged.

    The file holds events, meshes and their members, topics, subscriptions and blocks, and the counter of fencing
    tokens; no invites, no held locks and no journal. The exit code is 1 if something could not be read.

    For example:

        posthouse relay export ./relay.jsonl
        posthouse relay export ./relay.jsonl --data-dir /var/lib/posthouse/relay
    """
    from posthouse.relay.ops.salvage import export_relay

    with readable_store(data_dir) as (path, _shown):
        summary = export_relay(path, target.absolute())
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
    """Make a new store from an export; refused while the relay runs, or if there is a store already.

    Ids and signatures of all events are verified. Messages that the export does not prove confirmed are delivered
    again. The exit code is 1 if a line was not imported.

    For example:

        posthouse relay import ./relay.jsonl
        posthouse relay import ./relay.jsonl --data-dir /var/lib/posthouse/relay
    """
    from posthouse.model.clock import system_clock
    from posthouse.relay.store.high_water import MarkFile

    if not source.exists():
        raise error("usage", text=f"there is no file {source}")
    with hold_relay_lock(data_dir) as directory:
        store, import_from = _importing(data_dir)
        summary = import_from(source, system_clock(), MarkFile(mark_path(directory, high_water)))
    lines = [f"{store}  {summary.events:,} events", *summary.refused]
    output.result({"store": store, "events": summary.events, "refused": summary.refused}, "\n".join(lines))
    note_missing_key(output, directory)
    return Exit.REFUSED if summary.refused else Exit.OK


def _importing(data_dir: Path | None) -> tuple[str, Callable[[Path, Clock, MarkFile], Imported]]:
    """Return the name of the relay's store, and the function that makes it from an export."""
    from posthouse.postgresql.store_url import driver_required, shown_url
    from posthouse.relay.ops.salvage import import_relay

    if (url := server_url()) is None:
        path = store_path(data_dir, is_needed=False)
        return str(path), lambda source, clock, mark: asyncio.run(import_relay(source, path, clock, mark))
    with driver_required():
        from posthouse.relay.ops.server_copy import import_to_server
    return shown_url(url), lambda source, clock, mark: import_to_server(source, url, clock, mark)


def migrate(
    *,
    from_: Annotated[str, Parameter(name="--from", help="The store: a file relay.db, or postgresql://...")],
    to: Annotated[str, Parameter(help="The new store: postgresql://..., or a file relay.db that does not exist yet.")],
    output: Output = PLAIN,
) -> None:
    r"""Move the store of a relay from a SQLite file to PostgreSQL, or back; refused while a relay uses it.

    Epoch and seqs stay, so readers and the lake continue at their cursors. A digest of every table proves the copy. The
    old store is marked, and no relay starts on it again. If the command is interrupted, run it again. The key is not
    part of the store: the relay needs the same key.json at its new place.

    For example:

        posthouse relay migrate --from ~/.posthouse/relay/relay.db \
            --to postgresql://posthouse@db.example/relay
        posthouse relay migrate --from postgresql://posthouse@db.example/relay \
            --to ~/.posthouse/relay/relay.db --json
    """
    source, target, moved = _move(from_, to)
    value = {
        "from": source,
        "to": target,
        "epoch": moved.extent.epoch,
        "head": moved.extent.head,
        "was_moved_before": moved.digests is None,
        "digest": moved.digest,
        "tables": {} if moved.digests is None else {name: each._asdict() for name, each in moved.digests.items()},
    }
    at = f"epoch {moved.extent.epoch}, seq {moved.extent.head}"
    if moved.digests is None:
        output.result(value, f"{source} was moved to {target} before: {at}")
    else:
        rows = sum(each.rows for each in moved.digests.values())
        output.result(value, f"{source} moved to {target}: {at}, {rows:,} rows, digest {moved.digest}")


def _move(source: str, target: str) -> tuple[str, str, Moved]:
    from posthouse.postgresql.store_url import driver_required, is_store_url, shown_url

    with driver_required():
        from posthouse.relay.ops.move_store import move_to_file, move_to_server
    if is_store_url(source) == is_store_url(target):
        hint = "`posthouse relay backup` and `posthouse relay restore` copy a store within one kind."
        raise error("usage", text="give one file and one URL that begins with postgresql://", hint=hint)
    if is_store_url(target):
        file = Path(source).expanduser().absolute()
        return str(file), shown_url(target), move_to_server(file, target)
    file = Path(target).expanduser().absolute()
    return shown_url(source), str(file), move_to_file(source, file)
