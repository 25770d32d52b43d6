"""Rows of locks as a store keeps them; plain values without rules."""

from __future__ import annotations

from typing import Any, NamedTuple

from posthouse.model.lease import LockRow


class LockEntry(NamedTuple):
    """One lock of one mesh."""

    mesh: str
    row: LockRow
    #: ticket of the last waiter that was served in this run
    turn: int = 0

    def snapshot(self) -> dict[str, Any]:
        """Return what a snapshot of the journal holds of this lock; the turn means nothing to a replay."""
        row = self.row
        return {
            "mesh": self.mesh,
            "resource": row.resource,
            "owner": row.owner,
            "token": row.token,
            "lease_ms": row.lease_ms,
            "deadline_boot_ns": row.deadline_boot_ns,
            "is_released": row.is_released,
        }


class LockRun(NamedTuple):
    """One run of a relay: the span in which its boot times compare."""

    run_id: str
    #: the store's epoch then; another one means that the store was restored since
    epoch: str
    boot_id: str
    boot_ns: int
