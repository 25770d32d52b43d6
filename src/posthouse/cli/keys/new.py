"""`posthouse keys new`: make the key of this node."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.identity import KeyFile, key_path
from posthouse.cli.keys.card import answer_key


def new(*, key_file: KeyFile = None, output: Output = PLAIN) -> None:
    """Make a new key and show its node id; a key that exists is never replaced.

    For example:

        posthouse keys new
        posthouse keys new --key-file ./agent.json --json
    """
    from posthouse.keys import keyfile

    path = key_path(key_file)
    answer_key(output, keyfile.create(path), path)
