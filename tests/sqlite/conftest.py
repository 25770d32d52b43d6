from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.sqlite.connection import Durability, open_writer


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database in WAL mode with one row in one table."""
    path = tmp_path / "t.db"
    db = open_writer(path, Durability.FULL)
    db.execute("CREATE TABLE t (n INTEGER, body TEXT)")
    db.execute("INSERT INTO t VALUES (1, 'first')")
    db.close()
    return path
