"""`posthouse relay reindex`: rebuild what a relay derives from its events."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.relay.place import DataDir, stopped, store_path


def reindex(*, data_dir: DataDir = None, output: Output = PLAIN) -> None:
    """Rebuild the index of tags, the aliases of addresses and the latest of each line, in one transaction.

    Refused while the relay runs: it would have to wait for the whole of it.

    For example:

        posthouse relay reindex
        posthouse relay reindex --data-dir /var/lib/posthouse/relay --json
    """
    from posthouse.model.clock import system_clock
    from posthouse.relay.ops.maintenance import reindex_relay

    path = store_path(data_dir)
    with stopped(data_dir):
        reindex_relay(path, system_clock())
    output.answer({"store": path, "reindexed": True}, f"{path} reindexed")
