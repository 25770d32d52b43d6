"""`posthouse doctor`: every check, one line each; the exit code is 1 when something is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.doctor import storage, system
from posthouse.cli.doctor.finding import Finding, fail
from posthouse.cli.home import find_home
from posthouse.model.codes.spec import Exit

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(*, output: Output = PLAIN) -> int:
    """Check this installation and say what to do about what is wrong.

    For example:

        posthouse doctor
        posthouse doctor --json
    """
    findings = list(_examine())
    is_healthy = all(finding.state != "fail" for finding in findings)
    value = {"healthy": is_healthy, "checks": [asdict(finding) for finding in findings]}
    output.answer(value, _show(findings))
    return Exit.OK if is_healthy else Exit.REFUSED


def _examine() -> Iterator[Finding]:
    home = find_home()
    for check in system.CHECKS:
        yield from _look(check.__name__, check)
    for look in storage.CHECKS:
        yield from _look(look.__name__, partial(look, home))


def _look(name: str, check: Callable[[], Finding | Iterator[Finding]]) -> Iterator[Finding]:
    try:
        found = check()
        yield from [found] if isinstance(found, Finding) else found
    except OSError as failure:  # the doctor goes on: what it cannot look at is a finding
        yield fail(name.removeprefix("check_"), str(failure), "Give this user the right to look at it.")


def _show(findings: list[Finding]) -> RenderableType:
    from rich.text import Text

    rows = [
        (Text(finding.state, _STYLES[finding.state]), finding.name, finding.text, finding.hint) for finding in findings
    ]
    return table(("", "check", "found", "what to do"), rows)
