"""`posthouse keys import`: use an OpenSSH ed25519 key as the key of this node.

The passphrase of a protected key is asked for on the terminal or read from a file, never taken from the command
line, where every process could read it.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.identity import KeyFile, key_path
from posthouse.cli.keys.card import answer_key
from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from posthouse.keys import NodeKey


def import_key(
    source: Annotated[Path, Parameter(help="An OpenSSH private key, or a key file of posthouse.")],
    /,
    *,
    key_file: KeyFile = None,
    passphrase_file: Annotated[Path | None, Parameter(help="A private file with the passphrase.")] = None,
    output: Output = PLAIN,
) -> None:
    """Store an OpenSSH ed25519 key as the key of this node; a key that exists is never replaced.

    For example:

        posthouse keys import ~/.ssh/id_ed25519
    """
    from posthouse.keys import keyfile

    path = key_path(key_file)
    answer_key(output, keyfile.create(path, _read(source, passphrase_file)), path)


def _read(source: Path, passphrase_file: Path | None) -> NodeKey:
    from posthouse.files import read_private
    from posthouse.keys import keyfile

    if passphrase_file is not None:
        return keyfile.load(source, read_private(passphrase_file).removesuffix(b"\n"))
    try:
        return keyfile.load(source)
    except PosthouseError as failure:
        if failure.code != "passphrase_needed" or not sys.stdin.isatty():
            raise
    return keyfile.load(source, getpass.getpass(f"Passphrase of {source}: "))
