"""The command line with a writer that breaks as soon as the file named in WRITER_BREAKS_AT exists.

No input breaks the writer's thread, so the defect is put in; everything around it is the product's own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from posthouse.cli.main import main
from posthouse.sqlite.transaction import Transaction, run_items


def _break_on_demand(tx: Transaction, items: Sequence[Any], *given: Any) -> Any:
    if Path(os.environ["WRITER_BREAKS_AT"]).exists():
        raise MemoryError("no memory for the batch")
    return run_items(tx, items, *given)


if __name__ == "__main__":
    with patch("posthouse.sqlite.transaction.Transaction.commit_items", _break_on_demand):
        main()
