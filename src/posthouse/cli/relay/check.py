"""`posthouse relay check`: whether everything a relay keeps agrees with everything else."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.relay.findings import answer_findings
from posthouse.cli.relay.place import DataDir, store_path


def check(*, data_dir: DataDir = None, output: Output = PLAIN) -> int:
    """Compare events, records, indexes and meshes with each other; expected: nothing is found.

    It reads one snapshot and the relay may run. For damage of the file itself there is `posthouse relay verify`.

    For example:

        posthouse relay check
        posthouse relay check --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.relay.store.sqlite.check import RULES
    from posthouse.sqlite.connection import open_reader

    path = store_path(data_dir)
    db = open_reader(path)
    try:
        db.execute("BEGIN")
        findings = [finding for rule in RULES for finding in rule(db)]
        db.execute("ROLLBACK")
    finally:
        db.close()
    return answer_findings(output, path, findings)
