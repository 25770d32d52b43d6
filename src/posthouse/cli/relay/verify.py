"""`posthouse relay verify`: whether a store or a backup is whole and keeps its rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.relay.findings import answer_findings
from posthouse.cli.relay.place import DataDir, store_path
from posthouse.model.errors import error


def verify(
    file: Annotated[Path | None, Parameter(show_default=False, help="A backup; without it the relay's store.")] = None,
    /,
    *,
    data_dir: DataDir = None,
    output: Output = PLAIN,
) -> int:
    """Check a store or a backup: the database's integrity, the journal's rules, then the relay's own.

    Nothing is changed and the relay may run. The exit code is 1 when something is wrong.

    For example:

        posthouse relay verify
        posthouse relay verify /backups/relay-2026-03-01.db --json
    """
    from posthouse.relay.ops.maintenance import check_relay

    path = store_path(data_dir) if file is None else file.absolute()
    if not path.exists():
        raise error("usage", text=f"there is no file {path}")
    return answer_findings(output, path, check_relay(path))
