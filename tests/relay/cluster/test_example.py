"""The example of several relays runs and says what its text promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "cluster" / "main.py"
pytestmark = pytest.mark.xdist_group("cluster")


def test_messages_go_on_and_the_lock_stays_held_when_a_relay_is_killed(database: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), database], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    letters = [f"bob reads: letter {number}" for number in range(1, 7)]
    assert done.stdout.splitlines() == [
        "3 relays share one database",
        *letters[:3],
        "one of three relays is killed",
        *letters[3:],
        "alice still holds the lock",
    ]
