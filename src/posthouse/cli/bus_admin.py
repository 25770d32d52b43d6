"""Administration of a bus: `posthouse bus endpoints`, `access`, `breakers`, `dead`, `metrics`, `rebuild`, `recover`.

Without a verb, each of the first four lists its items; its verbs change them. The mailbox files are the source of
truth: `rebuild` derives the index from them, `recover` also derives bus.db.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from posthouse.cli.bus_requeue import requeue_letters
from posthouse.cli.bus_session import BusDir, count, shorten, with_bus
from posthouse.cli.commands import noun
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import error
from posthouse.model.limits import DEAD_LETTER_KEEP_DAYS

if TYPE_CHECKING:
    from posthouse.bus import Bus
    from posthouse.bus.results import Letter


_ENDPOINTS_HELP = """List, register and unregister endpoints.

For example:

    posthouse bus endpoints
    posthouse bus endpoints add agents.archive --json
"""
endpoints_app = noun("endpoints", _ENDPOINTS_HELP)


@endpoints_app.default
def endpoints(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """List every endpoint with its owner and the depth of its mailbox.

    For example:

        posthouse bus endpoints
        posthouse bus endpoints --json
    """
    found = with_bus(directory, output, _list_endpoints)
    if output.json:
        for entry in found:
            output.result(entry, "")
    elif found:
        columns = ("subject", "owner", "depth", "mailbox", "registered_at")
        rows = [tuple("" if entry[name] is None else entry[name] for name in columns) for entry in found]
        output.result(None, table(columns, rows))
    else:
        output.note("no endpoint is registered")


@endpoints_app.command(name="add")
def add_endpoint(
    subject: Annotated[str, Parameter(help="A subject, or a pattern that ends in `>`.")],
    /,
    *,
    owner: Annotated[str | None, Parameter(help="Owner of the endpoint; other owners are refused.")] = None,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Register an endpoint, so that the bus keeps messages for it.

    For example:

        posthouse bus endpoints add team.builder
        posthouse bus endpoints add 'team.>' --owner me
    """
    made = with_bus(directory, output, lambda bus: bus.register_endpoint(subject, owner=owner))
    value = {"subject": made.subject, "owner": made.owner, "mailbox": made.hash, "registered_at": made.registered_at}
    output.result(value, f"{made.subject}  mailbox {made.hash}")


@endpoints_app.command(name="remove")
def remove_endpoint(
    subject: Annotated[str, Parameter(help="The endpoint.")],
    /,
    *,
    force: Annotated[
        bool, Parameter(negative=(), help="Unregister even with unread messages, which become dead letters.")
    ] = False,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Unregister an endpoint; with unread messages it needs --force.

    For example:

        posthouse bus endpoints remove team.builder
        posthouse bus endpoints remove team.builder --force
    """
    with_bus(directory, output, lambda bus: bus.unregister_endpoint(subject, force=force))
    output.result({"subject": subject, "removed": True}, f"unregistered {subject}")


async def _list_endpoints(bus: Bus) -> list[dict[str, Any]]:
    depths = await bus.depths()
    return [
        {
            "subject": endpoint.subject,
            "owner": endpoint.owner,
            "depth": depths.get(endpoint.subject, 0),
            "mailbox": endpoint.hash,
            "registered_at": endpoint.registered_at,
        }
        for endpoint in await bus.list_endpoints()
    ]


_ACCESS_HELP = """List, add and remove access rules.

For example:

    posthouse bus access
    posthouse bus access add 'guest.>' 'team.>' deny --json
"""
access_app = noun("access", _ACCESS_HELP)
FromPattern = Annotated[str, Parameter(name="FROM", help="Senders, as a subject or pattern.")]
ToPattern = Annotated[str, Parameter(help="Endpoints, as a subject or pattern.")]


@access_app.default
def access(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """List the access rules in the order of evaluation: highest priority first, deny before allow.

    For example:

        posthouse bus access
        posthouse bus access --json
    """
    found = with_bus(directory, output, lambda bus: bus.list_rules())
    ordered = sorted(found, key=lambda rule: (-rule.priority, str(rule.action) == "allow"))
    if output.json:
        for rule in ordered:
            value = {"from": rule.from_, "to": rule.to, "action": str(rule.action), "priority": rule.priority}
            output.result(value, "")
    elif ordered:
        rows = [(rule.priority, rule.action, rule.from_, rule.to) for rule in ordered]
        output.result(None, table(("priority", "action", "from", "to"), rows))
    else:
        output.note("no rules: every sender may write to every endpoint")


@access_app.command(name="add")
def add_rule(
    from_: FromPattern,
    to: ToPattern,
    action: Annotated[Literal["allow", "deny"], Parameter(help="Whether to allow or deny matching messages.")],
    /,
    *,
    priority: Annotated[int, Parameter(help="Rules with a higher priority are evaluated first.")] = 0,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Add an access rule; a rule with the same patterns is replaced.

    For example:

        posthouse bus access add 'guest.>' 'team.>' deny
        posthouse bus access add guest.ann team.lead allow --priority 10
    """
    from posthouse.model.access_rules import AccessRule, Action

    rule = AccessRule(from_=from_, to=to, action=Action(action), priority=priority)
    with_bus(directory, output, lambda bus: bus.add_rule(rule))
    value = {"from": from_, "to": to, "action": action, "priority": priority}
    output.result(value, f"{action} {from_} -> {to} (priority {priority})")


@access_app.command(name="remove")
def remove_rule(from_: FromPattern, to: ToPattern, /, *, directory: BusDir = None, output: Output = PLAIN) -> None:
    """Remove the access rules with exactly these patterns.

    For example:

        posthouse bus access remove 'guest.>' 'team.>'
    """
    with_bus(directory, output, lambda bus: bus.remove_rule(from_, to))
    output.result({"from": from_, "to": to, "removed": True}, f"removed {from_} -> {to}")


_BREAKERS_HELP = """List and reset circuit breakers.

For example:

    posthouse bus breakers
    posthouse bus breakers reset agents.archive --json
"""
breakers_app = noun("breakers", _BREAKERS_HELP)


@breakers_app.default
def breakers(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """List the circuit breaker of every endpoint.

    For example:

        posthouse bus breakers
        posthouse bus breakers --json
    """
    import msgspec

    found = with_bus(directory, output, lambda bus: bus.breakers())
    if output.json:
        for breaker in found:
            output.result(msgspec.to_builtins(breaker), "")
    elif found:
        rows = [(b.subject, b.circuit, b.failures, b.successes, b.probes) for b in found]
        output.result(None, table(("subject", "circuit", "failures", "successes", "probes"), rows))
    else:
        output.note("no endpoint is registered")


@breakers_app.command(name="reset")
def reset_breaker(
    subject: Annotated[str, Parameter(help="The endpoint.")],
    /,
    *,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Close the circuit breaker of an endpoint: messages are delivered again at once.

    For example:

        posthouse bus breakers reset team.builder
    """
    with_bus(directory, output, lambda bus: bus.reset_breaker(subject))
    output.result({"subject": subject, "circuit": "CLOSED"}, f"closed the breaker of {subject}")


_DEAD_HELP = """List, requeue and purge dead letters.

For example:

    posthouse bus dead
    posthouse bus dead team.builder --json
"""
dead_app = noun("dead", _DEAD_HELP)


@dead_app.default
def dead(
    subject: Annotated[str | None, Parameter(help="Only dead letters of this endpoint.")] = None,
    /,
    *,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """List dead letters with their reasons.

    For example:

        posthouse bus dead
        posthouse bus dead team.builder --json
    """
    import msgspec

    letters, notes = with_bus(directory, output, lambda bus: _list_letters(bus, subject))
    for note in notes:
        output.note(note)
    if output.json:
        for letter in letters:
            output.result(msgspec.to_builtins(letter), "")
    elif letters:
        rows = [(x.id, x.failed_at, x.subject, x.reason, _payload(x)) for x in letters]
        output.result(None, table(("id", "failed", "subject", "reason", "payload"), rows))
    else:
        output.note("no dead letters")


@dead_app.command(name="purge")
def purge_letters(
    *,
    older_than_days: Annotated[
        float, Parameter(name="--older-than", help="Minimum age in days.")
    ] = DEAD_LETTER_KEEP_DAYS,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Delete old dead letters.

    For example:

        posthouse bus dead purge
        posthouse bus dead purge --older-than 0.5
    """
    from datetime import timedelta

    if not 0 <= older_than_days <= _MAX_AGE_DAYS:
        raise error("usage", text=f"--older-than must be between 0 and {_MAX_AGE_DAYS} days")
    removed = with_bus(directory, output, lambda bus: bus.purge(timedelta(days=older_than_days)))
    output.result({"removed": removed}, f"{count(removed, 'dead letter')} removed")


_MAX_AGE_DAYS = 36_500
dead_app.command(requeue_letters, name="requeue")


def _payload(letter: Letter) -> str:
    if letter.is_payload_dropped:
        return "(payload dropped)"
    return "(not a message)" if letter.envelope is None else shorten(letter.envelope.payload)


async def _list_letters(bus: Bus, subject: str | None) -> tuple[list[Letter], list[str]]:
    """Return the dead letters, and a note for each endpoint that has too many of them to accept new mail."""
    from posthouse.bus.letter_counts import read_letter_counts
    from posthouse.model.reliability import letters_refusal

    letters = await bus.dead_letters(subject)
    hashes = {letter.endpoint_hash for letter in letters}
    core = bus.session.core
    limits, notes = core.policy.reliability.dead_letters, []
    for box in await read_letter_counts(core):
        full = letters_refusal(box.failed, box.failed_bytes, limits) if box.number else None
        if full is not None and box.endpoint_hash in hashes:
            notes.append(f"{box.subject} refuses new mail: {full}; requeue or purge its dead letters")
    return letters, notes


def metrics(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """Count the indexed messages by status and by subject, and the dead letters by mailbox.

    For example:

        posthouse bus metrics
        posthouse bus metrics --json
    """
    import msgspec

    found = with_bus(directory, output, lambda bus: bus.metrics())
    rows: list[tuple[str, int | str]] = [("total", found.total_messages)]
    rows += [(f"status {name}", count) for name, count in sorted(found.by_status.items())]
    rows += [(f"subject {name}", count) for name, count in sorted(found.by_subject.items())]
    for box in found.dead_letters:
        rows += [
            (f"dead letters of {box.subject}, refused", f"{box.refused} ({box.refused_bytes} bytes)"),
            (f"dead letters of {box.subject}, accepted", f"{box.failed} ({box.failed_bytes} bytes)"),
        ]
    output.result(msgspec.to_builtins(found), table(("messages", "count"), rows))


def rebuild(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """Rebuild the index from the mailbox files.

    For example:

        posthouse bus rebuild
        posthouse bus rebuild --json
    """
    count = with_bus(directory, output, lambda bus: bus.rebuild_index())
    output.result({"messages": count}, f"{count} messages indexed")


def recover(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """Restore bus.db from the mailbox files if it is missing or damaged, and make both agree.

    A damaged bus.db is renamed, never deleted. Messages that were being handled are delivered again. Stop the
    processes that have the bus open first.

    For example:

        posthouse bus recover
        posthouse bus recover --json
    """
    from posthouse.bus import Bus
    from posthouse.bus.recovery import set_damaged_aside
    from posthouse.model.clock import system_clock
    from posthouse.model.limits import SECOND_NS

    root = Bus(directory).path
    aside = set_damaged_aside(root, system_clock().wall_ns() // SECOND_NS)
    if aside is not None:
        output.note(f"bus.db was damaged and has been renamed to {aside}")
    endpoints, messages = with_bus(root, output, _recover)
    found = {"damaged": None if aside is None else str(aside), "endpoints": endpoints, "messages": messages}
    output.result(found, f"{count(endpoints, 'endpoint')}, {count(messages, 'message')} waiting")


async def _recover(bus: Bus) -> tuple[int, int]:
    await bus.session.housekeeping.reconcile()
    return len(await bus.list_endpoints()), sum((await bus.depths()).values())
