"""`posthouse bus access`: who may write to whom."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.commands import noun
from posthouse.cli.console import PLAIN, Output, table

_SUMMARY = """List, add and remove access rules.

For example:

    posthouse bus access
    posthouse bus access add 'guest.>' 'team.>' deny --json
"""

app = noun("access", _SUMMARY)

FromPattern = Annotated[str, Parameter(help="Senders, as a subject or pattern.")]
ToPattern = Annotated[str, Parameter(help="Endpoints, as a subject or pattern.")]


@app.default
def access(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """List the rules in the order they decide: highest priority first, deny before allow.

    For example:

        posthouse bus access
        posthouse bus access --json
    """
    found = visit(directory, output, lambda bus: bus.list_rules())
    ordered = sorted(found, key=lambda rule: (-rule.priority, str(rule.action) == "allow"))
    if output.json:
        for rule in ordered:
            value = {"from": rule.from_, "to": rule.to, "action": str(rule.action), "priority": rule.priority}
            output.answer(value, "")
    elif ordered:
        rows = [(rule.priority, rule.action, rule.from_, rule.to) for rule in ordered]
        output.answer(None, table(("priority", "action", "from", "to"), rows))
    else:
        output.note("no rules: everybody may write to everybody")


@app.command(name="add")
def add(
    from_: FromPattern,
    to: ToPattern,
    action: Annotated[Literal["allow", "deny"], Parameter(help="What happens to what matches.")],
    /,
    *,
    priority: Annotated[int, Parameter(help="Higher ones decide first.")] = 0,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Add a rule; one with the same patterns is replaced.

    For example:

        posthouse bus access add 'guest.>' 'team.>' deny
        posthouse bus access add guest.ann team.lead allow --priority 10
    """
    from posthouse.model.access import AccessRule, Action

    rule = AccessRule(from_=from_, to=to, action=Action(action), priority=priority)
    visit(directory, output, lambda bus: bus.add_rule(rule))
    value = {"from": from_, "to": to, "action": action, "priority": priority}
    output.answer(value, f"{action} {from_} -> {to} (priority {priority})")


@app.command(name="remove")
def remove(from_: FromPattern, to: ToPattern, /, *, directory: BusDir = None, output: Output = PLAIN) -> None:
    """Remove the rules with exactly these patterns.

    For example:

        posthouse bus access remove 'guest.>' 'team.>'
    """
    visit(directory, output, lambda bus: bus.remove_rule(from_, to))
    output.answer({"from": from_, "to": to, "removed": True}, f"no rule for {from_} -> {to} is left")
