from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.relay.both_stores import server_findings
from tests.relay.cluster.relays import relays
from tests.relay.edge import Edge


@pytest.fixture
async def two(tmp_path: Path, database: str) -> AsyncIterator[list[Edge]]:
    """Two relays on one database; the first one leads. Whatever was done, nothing is wrong with the store."""
    async with relays(tmp_path, database, database) as found:
        yield found
    assert server_findings(database) == []
