"""What holds for every test: its own log configuration, a Ctrl-C that arrives, and no time limit per example.

A shell starts background jobs with SIGINT ignored, and a process passes that on to its children. Tests that interrupt a
child would then wait for ever, so the test process restores the default before the first child starts. Hypothesis would
fail an example that is slow because the machine is busy; tests have no timed assertions.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def unconfigured_log() -> Iterator[None]:
    """Undo the log configuration of a command that this test ran."""
    yield
    structlog.reset_defaults()


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
