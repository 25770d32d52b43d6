"""`posthouse bus dead requeue`: publish dead letters again, one by its id or all that match.

Dead letters are requeued oldest first. If an endpoint refuses one (open breaker, full mailbox), its other dead letters
stay dead, so that they keep their order. The output names each open breaker; --reset-breakers closes it first, because
people usually requeue a dead letter after they have fixed its cause.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.bus_session import BusDir, count, show_published, with_bus
from posthouse.cli.output import PLAIN, Output
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.bus import Bus
    from posthouse.bus.results import BreakerView, Letter, PublishResult


def requeue_letters(
    subject: Annotated[str | None, Parameter(help="Subject of the dead letter.")] = None,
    id_: Annotated[str | None, Parameter(name="ID", help="Id of the dead letter.")] = None,
    /,
    *,
    endpoint: Annotated[str | None, Parameter(help="Requeue the dead letters of this endpoint.")] = None,
    reason: Annotated[str | None, Parameter(help="Only those whose reason contains this text.")] = None,
    all_: Annotated[
        bool,
        Parameter(name="--all", negative=(), show_default=False, help="Requeue the dead letters of every endpoint."),
    ] = False,
    reset_breakers: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Close the circuit breakers of their endpoints first.")
    ] = False,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> int:
    """Publish dead letters again with a new budget: one by its id, or all that match.

    For example:

        posthouse bus dead requeue team.builder 01JCPZ6Q3M0000000000000000
        posthouse bus dead requeue --endpoint team.builder --reset-breakers
        posthouse bus dead requeue --all --reason ConnectionError
    """
    if subject is not None and id_ is not None and not (endpoint or all_ or reason):
        work = partial(_requeue_one, subject=subject, id_=id_, reset_breakers=reset_breakers)
        return show_published(output, with_bus(directory, output, work, shows_refusals=True))
    if subject is not None or not (all_ or endpoint):
        hint = "Give the subject and the id of one dead letter, or --endpoint, or --all."
        raise error("usage", text="it is not clear which dead letters to requeue", hint=hint)
    bulk = partial(_requeue_all, endpoint=endpoint, reason=reason or "", reset_breakers=reset_breakers)
    return _show(output, with_bus(directory, output, bulk, shows_refusals=True))


@dataclass
class Requeued:
    """The result of a bulk requeue."""

    requeued: int = 0
    #: dead letters without a message or its payload, and those that another process has requeued meanwhile
    skipped: int = 0
    #: messages that stay dead, by the subject of their endpoint
    kept: dict[str, int] = field(default_factory=dict)
    #: reason for the refusal, by the subject of the endpoint
    refusals: dict[str, str] = field(default_factory=dict)
    #: subjects whose breaker is open
    open_breakers: list[str] = field(default_factory=list)


async def _requeue_one(bus: Bus, subject: str, id_: str, reset_breakers: bool) -> PublishResult:
    if reset_breakers:
        letters = [letter for letter in await bus.dead_letters(subject) if letter.id == id_]
        await _reset_breakers(bus, letters)
    return await bus.requeue(subject, id_)


async def _requeue_all(bus: Bus, endpoint: str | None, reason: str, reset_breakers: bool) -> Requeued:
    letters = [letter for letter in await bus.dead_letters(endpoint) if reason in letter.reason]
    if reset_breakers:
        await _reset_breakers(bus, letters)
    breakers = {breaker.endpoint_hash: breaker.subject for breaker in await bus.breakers()}
    result = Requeued()
    for letter in letters:
        await _requeue(bus, letter, breakers.get(letter.endpoint_hash, letter.subject), result)
    result.open_breakers = [breaker.subject for breaker in await _open_breakers(bus) if breaker.subject in result.kept]
    return result


async def _requeue(bus: Bus, letter: Letter, endpoint: str, result: Requeued) -> None:
    if endpoint in result.kept:
        result.kept[endpoint] += 1
        return
    try:
        published = await bus.requeue(letter.subject, letter.id)
    except PosthouseError as failure:
        if failure.code not in ("dead_letter_unknown", "dead_letter_trimmed"):
            raise
        result.skipped += 1
        return
    if published.delivered_to:
        result.requeued += 1
        return
    texts = [rejection.text for rejection in published.rejected]
    result.refusals[endpoint] = "; ".join(texts) or "no endpoint matches the subject"
    result.kept[endpoint] = 1


async def _open_breakers(bus: Bus) -> list[BreakerView]:
    from posthouse.model.breaker import Circuit

    return [breaker for breaker in await bus.breakers() if breaker.circuit is not Circuit.CLOSED]


async def _reset_breakers(bus: Bus, letters: list[Letter]) -> None:
    hashes = {letter.endpoint_hash for letter in letters}
    for breaker in await _open_breakers(bus):
        if breaker.endpoint_hash in hashes:
            await bus.reset_breaker(breaker.subject)


def _show(output: Output, result: Requeued) -> int:
    from dataclasses import asdict

    lines = [f"{count(result.requeued, 'dead letter')} requeued"]
    if result.skipped:
        skipped = count(result.skipped, "dead letter")
        lines.append(f"{skipped} skipped: they hold no message or no payload, or were requeued before")
    for subject, text in result.refusals.items():
        lines.append(f"{count(result.kept[subject], 'dead letter')} of {subject} kept: {text}")
    for subject in result.open_breakers:
        lines.append(f"the breaker of {subject} is open: repeat with --reset-breakers to close it first")
    output.result(asdict(result), "\n".join(lines))
    return Exit.REFUSED if result.kept else Exit.OK
