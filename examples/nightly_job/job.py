"""The job of the night: write the report unless it is there, with the fencing token that `posthouse lock run` gives."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from posthouse import Fence
from posthouse.model.errors import PosthouseError


def main(report: Path) -> None:
    token = int(os.environ["POSTHOUSE_FENCING_TOKEN"])
    fence = Fence(report.with_name("reports.fence"))
    try:
        fence.admit(token)  # before the check: from here on no former holder can write
        if report.exists():
            sys.stdout.write(f"{report.stem}: done already\n")
            return
        with fence.guard(token):
            report.write_text(f"the report of {report.stem}\n")
        sys.stdout.write(f"{report.stem}: written\n")
    except PosthouseError as failure:
        sys.stdout.write(f"refused, {failure}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
