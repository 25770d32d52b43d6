"""The token of the HTTP server: a secret of its own in the daemon's directory, which opens the tools and nothing else.

It is not the daemon's local token: that one opens the whole local interface, and this one is handed to agents. It stays
the same over restarts, or every agent would have to be told again.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from posthouse.files import create_atomic, private_dir, read_private
from posthouse.keys import new_token

TOKEN_NAME = "mcp_token"


def keep_token(directory: Path) -> str:
    """Return the token that lies in a directory; the first time it is made."""
    path = private_dir(directory) / TOKEN_NAME
    with suppress(FileExistsError):
        create_atomic(path, f"{new_token()}\n".encode())
    return read_private(path).decode().strip()
