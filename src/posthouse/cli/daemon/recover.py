"""`posthouse daemon recover`: save what can be read of a damaged outbox."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def recover(*, near: Near = USUAL, output: Output = PLAIN) -> None:
    """Put a damaged outbox aside and begin a new one with the rows that can be read; the daemon must not run.

    The damaged file stays, whole, beside the new one. What the relay has already is not there twice afterwards.

    For example:

        posthouse daemon recover
        posthouse daemon recover --dir ./daemon --json
    """
    from posthouse.cli.daemon.existing import existing_directory
    from posthouse.daemon.recover import recover_outbox
    from posthouse.model.clock import system_clock
    from posthouse.model.node import DEFAULT_MESH

    found = recover_outbox(existing_directory(near), near.mesh or DEFAULT_MESH, system_clock())
    if found.aside is None:
        output.answer(found._asdict(), "there is no outbox to recover")
        return
    output.answer(
        found._asdict(), f"{found.rows} rows saved, {found.pending} of them to be sent; the old file is {found.aside}"
    )
