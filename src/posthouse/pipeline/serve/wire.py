"""What goes over the socket: one JSON object per line, a question and its answer.

    {"sql": "SELECT 1", "limit": 100}
    {"columns": ["1"], "rows": [[1]], "is_cut": false}     or     {"problem": {"code": ...}}

The socket lies in the lake's own directory, which only its owner can enter. A path too long for a socket address is
reached through a descriptor of its directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

SOCKET_NAME = "serve.sock"
ADDRESS_MAX_BYTES = 107  # of a Unix socket address on Linux, without its ending NUL
LINE_MAX_BYTES = 1 << 20  # of a question


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """A question in SQL."""

    sql: str
    limit: int


class Reply(msgspec.Struct, omit_defaults=True):
    """An answer, or why there is none."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    is_cut: bool = False
    problem: dict[str, Any] | None = None


@contextmanager
def socket_address(lake: Path) -> Iterator[str]:
    """Yield an address of the lake's socket that is short enough."""
    path = str(lake / SOCKET_NAME)
    if len(os.fsencode(path)) <= ADDRESS_MAX_BYTES:
        yield path
        return
    fd = os.open(lake, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)
