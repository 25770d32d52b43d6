"""The key a command acts with: the one it was given, or the one in the home of posthouse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.home import find_home
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.keys import NodeKey

#: The option of every command that acts as a node.
KeyFile = Annotated[
    Path | None, Parameter(name="--key-file", help="The key file; without it key.json in the home of posthouse.")
]


def key_path(given: Path | None) -> Path:
    """Return the key file to use."""
    return given or find_home().key


def load_key(given: Path | None) -> NodeKey:
    """Return the key to act with; when there is none, the hint says how to make one."""
    from posthouse.keys import keyfile

    path = key_path(given)
    try:
        return keyfile.load(path)
    except PosthouseError as failure:
        if failure.code != "key_file_missing":
            raise
        hint = "Run `posthouse keys new`, or `posthouse keys import FILE` to use an OpenSSH key."
        raise error("key_file_missing", path=str(path), hint=hint) from failure
