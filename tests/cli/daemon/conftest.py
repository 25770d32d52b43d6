from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.daemon.hosts import Hosts, running_hosts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with running_hosts(tmp_path_factory.mktemp("h")) as running:
        yield running
