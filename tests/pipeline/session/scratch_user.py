"""A process that writes into a scratch directory of the pipeline and then waits to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from posthouse.pipeline.session.spark import scratch_directory

if __name__ == "__main__":
    folder = Path(scratch_directory())
    (folder / "text").write_text("what people wrote")
    sys.stdout.write(f"{folder}\n")
    sys.stdout.flush()
    sys.stdin.read()
