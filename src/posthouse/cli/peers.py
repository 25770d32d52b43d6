"""`posthouse peers`: the members of the mesh and who is there."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.near import USUAL, Near


def peers(*, near: Near = USUAL, output: Output = PLAIN) -> None:
    """List the members of the mesh, whether they are online, and what they say about themselves.

    For example:

        posthouse peers
        posthouse peers --mesh team --json
    """
    with near.client() as daemon:
        answer = daemon.peers()
    rows = [
        (
            (each.get("name") or "-") + (" (this host)" if each.get("is_self") else ""),
            "online" if each.get("online") else "offline",
            each.get("status") or "",
            each.get("role") or "",
            each.get("node") or "",
        )
        for each in answer.get("peers", [])
    ]
    output.answer(answer, table(("name", "presence", "status", "role", "node"), rows))
    if answer.get("is_cached"):
        output.note("the relay cannot be reached: this is what was last heard")
