"""What the commands about keys say of a key: its public side only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.cli.console import Output

if TYPE_CHECKING:
    from posthouse.keys import NodeKey


def answer_key(output: Output, key: NodeKey, path: Path) -> None:
    """Show the node id of a key, the same key as OpenSSH and age write it, and its file."""
    from posthouse.keys import write_public_line

    ssh = write_public_line(key.node)
    lines = (f"node  {key.node}", f"ssh   {ssh}", f"file  {path}")
    output.answer({"node": key.node, "ssh": ssh, "file": path}, "\n".join(lines))
