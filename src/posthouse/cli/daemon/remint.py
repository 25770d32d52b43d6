"""`posthouse daemon remint`: a new identity for the daemon."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def remint(
    *,
    abort_pending: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Give up messages that were not sent yet.")
    ] = False,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Make a new key for the daemon, which must not run; it is a new node to everybody, and has to join again.

    Refuses while messages of the present key wait. The old key stays in the directory under another name.

    For example:

        posthouse daemon remint
        posthouse daemon remint --abort-pending --json
    """
    from posthouse.cli.daemon.existing import existing_directory
    from posthouse.daemon.identity import remint as remint_identity
    from posthouse.model.clock import system_clock
    from posthouse.model.node import DEFAULT_MESH

    directory = existing_directory(near)
    before, after = remint_identity(directory, near.mesh or DEFAULT_MESH, system_clock(), abort_pending=abort_pending)
    output.answer({"before": before or None, "node": after}, f"the daemon is {after} now")
