"""A process that writes a log under many tokens, with a fence or without: python -m tests.fence.writer ..."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from posthouse import Fence, Refused


def main(folder: Path, kind: str, seed: int, tokens: int) -> None:
    """Write `tokens` lines to FOLDER/log, each with its token; say each token that passed once it has."""
    chance, fence = random.Random(seed), Fence(folder / "fence")
    with (folder / "log").open("a") as log:
        for token in sorted(chance.choices(range(1, 10_000), k=tokens)):
            try:
                if kind == "fenced":
                    with fence.guard(token):
                        print(token, file=log, flush=True)
                else:
                    print(token, file=log, flush=True)
            except Refused:
                continue
            print(token, flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
