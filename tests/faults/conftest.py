"""Says in the header of the report which seed repeats the faults of this run (see campaign.py)."""

from __future__ import annotations

from tests.faults.campaign import SEED


def pytest_report_header() -> str:
    return f"posthouse faults: POSTHOUSE_FAULT_SEED={SEED}"
