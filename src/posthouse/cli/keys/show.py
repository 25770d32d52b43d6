"""`posthouse keys show`: who this node is."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.identity import KeyFile, key_path, load_key
from posthouse.cli.keys.card import answer_key


def show(*, key_file: KeyFile = None, output: Output = PLAIN) -> None:
    """Show the node id and the public key of this node; never the secret.

    For example:

        posthouse keys show
        posthouse keys show --json
    """
    answer_key(output, load_key(key_file), key_path(key_file))
