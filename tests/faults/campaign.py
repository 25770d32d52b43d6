"""How long a fault test runs, and with which chance.

A campaign is marked `@pytest.mark.campaign` and asks `rounds(sample, full)` how often to do its worst: `make sample`
runs the sample, `make faults` the full number (POSTHOUSE_FAULTS=full). Tests of `make test` that have more rounds there
are marked `@pytest.mark.faults`. Chance comes from `chance(name)`; POSTHOUSE_FAULT_SEED repeats a run, and the report's
header says which seed it was.
"""

from __future__ import annotations

import os
import random
import secrets

SEED = int(os.environ.get("POSTHOUSE_FAULT_SEED") or secrets.randbits(32))


def rounds(sample: int, full: int) -> int:
    """Return how many rounds to run."""
    return full if os.environ.get("POSTHOUSE_FAULTS") == "full" else sample


def chance(name: str) -> random.Random:
    """Return the source of chance for one test: the same seed gives every test its own, same numbers."""
    return random.Random(f"{SEED}/{name}")
