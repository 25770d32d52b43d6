"""`posthouse daemon accept-host`: the identity was moved to this machine on purpose."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def accept_host(*, near: Near = USUAL, output: Output = PLAIN) -> None:
    """Let the identity in the daemon's directory live on this machine from now on.

    Only for a directory that was moved. If it was copied and the other one is still used, run `remint` here instead:
    two machines with one identity take mail away from each other.

    For example:

        posthouse daemon accept-host
        posthouse daemon accept-host --mesh team --json
    """
    from posthouse.cli.daemon.existing import existing_directory
    from posthouse.daemon.identity import accept_this_host

    directory = existing_directory(near)
    accept_this_host(directory)
    output.answer({"directory": directory.root, "accepted": True}, f"{directory.root} belongs to this machine now")
