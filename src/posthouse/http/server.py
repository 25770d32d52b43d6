"""What a long-running server process sets up once it is ready to serve.

Objects that exist when a server is ready live as long as the process, so the garbage collector need not visit them
again. A batch of messages makes thousands of short-lived tuples and no cycles; with the default threshold the
collector would run several times within one batch.
"""

from __future__ import annotations

import gc

_THRESHOLD = 50_000  # objects made and not yet freed, some megabytes of them


def freeze_heap() -> None:
    """Take everything that exists now for permanent, and look for cycles less often from here on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD)
