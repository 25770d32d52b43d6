from __future__ import annotations

from tests.relay.store.locks_contract import LocksContract


class TestSqliteLocks(LocksContract):
    """SQLite keeps the contract."""
