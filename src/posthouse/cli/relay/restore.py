"""`posthouse relay restore`: put a backup in the place of a relay's store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.relay.place import DataDir, stopped
from posthouse.model.errors import error


def restore(
    backup: Annotated[Path, Parameter(help="A file that `posthouse relay backup` made.")],
    /,
    *,
    data_dir: DataDir = None,
    output: Output = PLAIN,
) -> None:
    """Replace the store of a relay by a backup; refused while the relay runs.

    History goes on under a new epoch: clients with cursors of the lost future are told, instead of missing events.

    For example:

        posthouse relay restore /backups/relay-2026-03-01.db
        posthouse relay restore ./relay.copy --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.model.clock import system_clock
    from posthouse.relay.ops.maintenance import restore_relay
    from posthouse.relay.store.sqlite import FILE_NAME

    if not backup.exists():
        raise error("usage", text=f"there is no file {backup}")
    with stopped(data_dir) as directory:
        path = directory / FILE_NAME
        epoch = restore_relay(backup.absolute(), path, system_clock())
    output.answer({"store": path, "backup": backup.absolute(), "epoch": epoch}, f"{path} restored, epoch {epoch}")
