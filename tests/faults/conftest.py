"""Fixtures of fault campaigns: the seed that repeats the faults of this run (see campaign.py), and where they write."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.campaign import SEED


def pytest_report_header() -> str:
    return f"posthouse faults: POSTHOUSE_FAULT_SEED={SEED}"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory on the disk, whose delays stretch the moments at which a campaign kills."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
