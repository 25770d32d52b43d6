"""`posthouse daemon version`: what the daemon is that runs."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def version(*, near: Near = USUAL, output: Output = PLAIN) -> None:
    """Show the version of the daemon that runs, of its local interface and of its stores.

    For example:

        posthouse daemon version
        posthouse daemon version --json
    """
    import msgspec

    with near.client() as daemon:
        found = daemon.version()
    values = msgspec.structs.asdict(found)
    output.answer(found, "\n".join(f"{name:<14}{value}" for name, value in values.items() if value is not None))
