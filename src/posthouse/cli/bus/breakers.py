"""`posthouse bus breakers`: which endpoints are left alone because they keep failing."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.commands import noun
from posthouse.cli.console import PLAIN, Output, table

_SUMMARY = """List and reset circuit breakers.

For example:

    posthouse bus breakers
    posthouse bus breakers reset agents.archive --json
"""

app = noun("breakers", _SUMMARY)


@app.default
def breakers(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """List the breaker of every endpoint.

    For example:

        posthouse bus breakers
        posthouse bus breakers --json
    """
    import msgspec

    found = visit(directory, output, lambda bus: bus.breakers())
    if output.json:
        for breaker in found:
            output.answer(msgspec.to_builtins(breaker), "")
    elif found:
        rows = [(b.subject, b.circuit, b.failures, b.successes, b.probes) for b in found]
        output.answer(None, table(("subject", "circuit", "failures", "successes", "probes"), rows))
    else:
        output.note("no endpoint is registered")


@app.command(name="reset")
def reset(
    subject: Annotated[str, Parameter(help="The endpoint.")],
    /,
    *,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Close the breaker of an endpoint, so that it gets mail again at once.

    For example:

        posthouse bus breakers reset team.builder
    """
    visit(directory, output, lambda bus: bus.reset_breaker(subject))
    output.answer({"subject": subject, "circuit": "CLOSED"}, f"the breaker of {subject} is closed")
