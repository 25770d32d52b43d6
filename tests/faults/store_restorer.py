"""A process that restores a store and kills itself before the nth step that changes the disk.

    python -m tests.faults.store_restorer BACKUP PATH STEP

Without reaching the step it tells the new epoch.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posthouse.journal import restore
from posthouse.journal.store import JOURNAL
from posthouse.model.clock import SystemClock


def main() -> None:
    backup, path, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    left = step

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in ("unlink", "rename"):
        setattr(Path, name, dying(getattr(Path, name)))
    for name in ("fsync", "link"):
        setattr(os, name, dying(getattr(os, name)))
    print(restore.restore_store(backup, path, (JOURNAL,), SystemClock()))  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
