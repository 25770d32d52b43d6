"""Waiting for another thread, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], timeout_s: float = 20) -> None:
    """Return once `holds()` is true; fail the test when that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.005)
