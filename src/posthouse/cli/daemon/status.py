"""`posthouse daemon status`: how the daemon is."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def status(*, near: Near = USUAL, output: Output = PLAIN) -> None:
    """Tell whether the daemon runs and reaches its relay, and what waits; exit code 3 without one.

    For example:

        posthouse daemon status
        posthouse daemon status --mesh team --json
    """
    import msgspec

    with near.client() as daemon:
        health = daemon.health()
        directory = daemon.place.directory
    values = {**msgspec.structs.asdict(health), "directory": str(directory)}
    output.answer(values, "\n".join(f"{name:<14}{value}" for name, value in values.items() if value is not None))
