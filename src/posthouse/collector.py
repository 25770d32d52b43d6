"""The interpreter's collector of reference cycles in processes that serve for months.

What is there once a process is ready stays for its life, so the collector need not look at it again. A batch of
messages makes thousands of short-lived tuples and no cycles; with the default threshold the collector would run several
times within it, and most of all where the most is written.
"""

from __future__ import annotations

import gc

_THRESHOLD = 50_000  # objects made and not yet freed, some megabytes of them


def settle() -> None:
    """Take everything that exists now for permanent, and look for cycles less often from here on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD)
