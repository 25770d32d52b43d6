"""`posthouse relay backup`: a consistent copy of a relay's store, while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.relay.place import DataDir, store_path


def backup(
    target: Annotated[Path, Parameter(help="The new file; an existing one is never overwritten.")],
    /,
    *,
    data_dir: DataDir = None,
    output: Output = PLAIN,
) -> None:
    """Copy the store of a relay, running or not, as it is at one moment; the relay's key is not part of it.

    For example:

        posthouse relay backup /backups/relay-2026-03-01.db
        posthouse relay backup ./relay.copy --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.relay.ops.maintenance import backup_relay

    source = store_path(data_dir)
    backup_relay(source, target.absolute())
    size = target.stat().st_size
    output.answer({"store": source, "backup": target.absolute(), "bytes": size}, f"{target}  {size:,} bytes")
    output.note("keep key.json beside it: without the relay's key its clients have to trust a new one")
