from __future__ import annotations

from tests.relay.store.locks_contract import LocksContract


class TestLocks(LocksContract):
    """Every store keeps the contract."""
