"""The key a daemon acts with: kept in its directory, or only in memory for as long as it runs.

What is in the outbox was signed by one key; messages of another key that were not sent can never be sent, so an
ephemeral daemon gives up what an earlier one left behind, and `remint` refuses while something waits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import structlog

from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.host import accept_host, read_host
from posthouse.daemon.outbox import Outbox
from posthouse.daemon.outbox.operate import abort_open
from posthouse.daemon.outbox.outbox import read_depth
from posthouse.keys import NodeKey, keyfile
from posthouse.model.clock import Clock
from posthouse.model.errors import error

log = structlog.get_logger(__name__)
_CI = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "JENKINS_URL")


def is_ephemeral_by_default(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether this is a machine of a continuous integration service, gone in a moment."""
    return any(environ.get(name, "").lower() not in ("", "0", "false") for name in _CI)


async def load_identity(directory: DaemonDirectory, outbox: Outbox, *, is_ephemeral: bool) -> NodeKey:
    """Return the key of the daemon, making one if need be."""
    if not is_ephemeral:
        return keyfile.load_or_create(directory.key)
    aborted = await outbox.abort_open()
    if aborted:
        log.warning("outbox_aborted", rows=aborted, reason="they were signed by an identity that is gone")
    return NodeKey.generate()


def accept_this_host(directory: DaemonDirectory) -> None:
    """Take this machine for the one the identity lives on; the daemon must not run."""
    lock = directory.lock()
    try:
        accept_host(directory.host_fingerprint, read_host())
    finally:
        lock.close()


def remint(directory: DaemonDirectory, mesh: str, clock: Clock, *, abort_pending: bool = False) -> tuple[str, str]:
    """Make a new identity; return the node ids before and after. Raises remint_pending while something waits."""
    directory.prepare()
    lock = directory.lock()
    try:
        before = keyfile.load(directory.key).node if directory.key.exists() else ""
        _give_up_rows(directory, mesh, clock, abort_pending=abort_pending)
        if before:
            directory.key.rename(directory.key.with_name(f"keypair.{before.rpartition(':')[2][:16]}.json"))
        key = keyfile.create(directory.key)
        accept_host(directory.host_fingerprint, read_host())
        return before, key.node
    finally:
        lock.close()


def _give_up_rows(directory: DaemonDirectory, mesh: str, clock: Clock, *, abort_pending: bool) -> None:
    if not directory.outbox.exists():
        return
    outbox = Outbox(directory.outbox, mesh, clock)
    try:
        depth = outbox.store.pool.run_blocking(read_depth)
        rows = depth.pending + depth.inflight
        if rows and not abort_pending:
            raise error("remint_pending", rows=rows)
        outbox.store.writer.run_blocking(lambda tx: abort_open(tx, mesh))
    finally:
        outbox.close()
