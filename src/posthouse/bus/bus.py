"""The embedded message bus for agents on one machine.

    async with Bus() as bus:
        await bus.register_endpoint("team.alpha")
        await bus.subscribe("team.*", handler)
        await bus.publish("team.alpha", {"content": "hello"}, from_="team.beta")

This is the public interface: every method validates its arguments, checks that the bus is open and calls the part
that does the work. One Bus belongs to the event loop that opened it; several processes may open the same data
directory. `publish_bridged` is the second way in, for messages that the daemon's bridge receives from a mesh.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

import msgspec

from posthouse.bus import dead_letters, endpoints, polling
from posthouse.bus.admission import INHERITED, Draft, budget_of_message
from posthouse.bus.data_directory import default_path, endpoint_hash
from posthouse.bus.dead_letters import LetterObserver, observe_letters
from posthouse.bus.handlers import Handler, Subscription, Unsubscribe
from posthouse.bus.housekeeping import Retention
from posthouse.bus.publishing import ReservePublish
from posthouse.bus.results import (
    AckAnswer,
    BreakerView,
    Endpoint,
    IndexRow,
    Letter,
    Metrics,
    PublishResult,
    SubscriptionView,
)
from posthouse.bus.session import BusOptions, Session
from posthouse.bus.signals import SignalHandler
from posthouse.bus.taps import Tap, TapHandler, start_tap
from posthouse.bus.transaction import read_depths
from posthouse.model.access_rules import AccessRule
from posthouse.model.budget import (
    MESH_CEILING,
    Budget,
    BudgetCeiling,
    CycleRule,
    GivenBudget,
    MeshBudget,
    to_bus_budget,
)
from posthouse.model.clock import Clock, system_clock
from posthouse.model.envelope import Envelope, Signal, json_payload
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import BUS_CALL_BUDGET, BUS_MAX_HOPS, BUS_TTL_MS, DEAD_LETTER_KEEP_DAYS
from posthouse.model.reliability import Reliability
from posthouse.model.subjects import validate_subject

_encode = msgspec.json.Encoder().encode


class Bus:
    """An open data directory; use it as an async context manager."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_hops: int = BUS_MAX_HOPS,
        default_ttl_ms: int = BUS_TTL_MS,
        default_call_budget: int = BUS_CALL_BUDGET,
        durability: Literal["process", "power"] = "process",
        cycle_rule: CycleRule = "chain",
        handler_timeout_s: float = 30,
        max_listeners: int = 100,
        reliability: Reliability | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = default_path() if path is None else Path(path)
        _check_choice("durability", durability, ("process", "power"))
        _check_choice("cycle_rule", cycle_rule, get_args(CycleRule))
        _check_positive("handler_timeout_s", handler_timeout_s)
        _check_positive("max_listeners", max_listeners)
        self._settings = BusOptions(
            self.path,
            BudgetCeiling(max_hops=max_hops, ttl_ms=default_ttl_ms, call_budget=default_call_budget),
            cycle_rule,
            durability == "power",
            handler_timeout_s,
            max_listeners,
            reliability or Reliability(),
            retention,
            clock or system_clock(),
        )
        self._session: Session | None = None

    # opening and closing

    async def __aenter__(self) -> Bus:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the data directory, creating it if it is missing."""
        if self._session is None:
            session = Session(self._settings)
            try:
                await session.start()
            except BaseException:
                await session.close()
                raise
            self._session = session

    async def close(self) -> None:
        """Release every lock, descriptor and database; harmless when called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def problems(self) -> list[PosthouseError]:
        """Return what is wrong with the operator's files, as last read; empty when nothing is."""
        session = self._open
        return [fault for fault in (session.policy.rules.fault, session.config.fault) if fault is not None]

    async def sweep(self) -> None:
        """Sweep what dead processes left and what has expired now, instead of within a moment."""
        await self._open.housekeeping.sweep()

    @property
    def session(self) -> Session:
        """The parts of this bus, for those that build on it; raises bus_closed."""
        return self._open

    @property
    def _open(self) -> Session:
        session = self._session
        if session is None:
            raise error("bus_closed", path=str(self.path))
        if session.failure is not None:
            raise session.failure
        return session

    # endpoints and subscriptions

    async def register_endpoint(self, subject: str, owner: str | None = None) -> Endpoint:
        """Register an endpoint, or join as its owner; a subject ending in `>` takes what no literal one matches."""
        return endpoints.register(self._open, subject, owner)

    async def unregister_endpoint(self, subject: str, force: bool = False) -> None:
        """Remove an endpoint; unread mail needs force and becomes dead letters."""
        endpoints.unregister(self._open, endpoints.find_endpoint(self._open, subject), force=force)

    async def get_endpoint(self, subject: str) -> Endpoint | None:
        """Return an endpoint by its exact subject."""
        validate_subject(subject, allow_wildcards=True)
        return self._open.ledger.run(lambda page: page.book.by_subject.get(subject))

    async def depths(self) -> dict[str, int]:
        """Return how many messages wait or are in work, by endpoint."""
        session = self._open
        session.ledger.flush()
        return session.ledger.run(lambda page: read_depths(page.db))

    async def list_endpoints(self) -> list[Endpoint]:
        """Return all endpoints of all processes, sorted by subject; those that only carry replies are left out."""
        book = self._open.ledger.run(lambda page: page.book)
        found = [endpoint for number, endpoint in book.by_number.items() if number not in book.private]
        return sorted(found, key=lambda endpoint: endpoint.subject)

    async def subscribe(self, pattern: str, handler: Handler) -> Unsubscribe:
        """Let `handler` have the mail of matching endpoints this process registered; await the answer to stop."""
        session = self._open
        ticket = session.subscriptions.add(Subscription(pattern, handler))
        session.serving.subscriptions_changed(pattern)
        is_subscribed = True

        async def unsubscribe() -> None:
            nonlocal is_subscribed
            if is_subscribed and self._session is session:
                is_subscribed = False
                session.subscriptions.remove(ticket)
                session.serving.subscriptions_changed(pattern)
                session.ledger.flush()

        return unsubscribe

    async def list_subscriptions(self) -> list[SubscriptionView]:
        """Return the subscriptions of this process."""
        return self._open.subscriptions.views()

    async def tap(self, pattern: str, handler: TapHandler, after: str | None = None) -> Tap:
        """Show `handler` every matching message of all processes, from now or after a cursor; consumes nothing."""
        return await start_tap(self._open, pattern, handler, after)

    # messages

    async def publish(
        self,
        subject: str,
        payload: Any,
        *,
        from_: str,
        reply_to: str | None = None,
        in_reply_to: str | None = None,
        budget: GivenBudget | Budget | None = None,
    ) -> PublishResult:
        """Store a message in every mailbox the subject reaches; never waits for handlers."""
        session = self._open
        validate_subject(subject, allow_wildcards=True)
        validate_subject(from_)
        if reply_to is not None:
            validate_subject(reply_to)
        if budget is not None and not isinstance(budget, GivenBudget | Budget):
            raise error("value_invalid", name="budget", reason=f"{type(budget).__name__} is no budget")
        raw = msgspec.Raw(_encode(json_payload(payload)))
        inherited = INHERITED.get()
        if in_reply_to is not None:
            inherited = await budget_of_message(session, in_reply_to, from_, inherited)
        future = session.loop.create_future()
        draft = Draft(subject, raw, from_, future, reply_to=reply_to, inherited=inherited, given=budget)
        session.ledger.submit_opening(ReservePublish(session, draft))
        result: PublishResult = await future
        return result

    async def request(
        self, subject: str, payload: Any, *, from_: str, timeout_s: float, budget: GivenBudget | Budget | None = None
    ) -> Envelope:
        """Publish and return the first reply, or raise request_timeout or request_undelivered."""
        _check_positive("timeout_s", timeout_s)

        async def publish(reply_to: str) -> PublishResult:
            return await self.publish(subject, payload, from_=from_, reply_to=reply_to, budget=budget)

        return await self._open.requests.ask(subject, publish, timeout_s)

    async def read_inbox(self, subject: str, limit: int = 100, after: str | None = None) -> list[Envelope]:
        """Return waiting messages of an endpoint, oldest first; consumes nothing."""
        return polling.read_inbox(self._open, subject, limit, after)

    async def ack(self, subject: str, id: str) -> AckAnswer:  # noqa: A002 - the word of the API
        """End a waiting message: "acked", "unknown", or "being_served" when a process serves the endpoint."""
        return polling.ack(self._open, subject, id)

    # signals

    async def signal(self, subject: str, signal: Signal) -> int:
        """Hand a signal to the matching handlers of this process; return how many there are."""
        validate_subject(subject)
        return self._open.signals.emit(subject, signal)

    async def on_signal(self, pattern: str, handler: SignalHandler) -> Unsubscribe:
        """Let `handler(subject, signal)` have the signals to matching subjects."""
        return _awaitable(self._open.signals.add(pattern, handler))

    # access rules

    async def add_rule(self, rule: AccessRule) -> None:
        """Add a rule for all processes; one with the same patterns is replaced."""
        self._open.policy.rules.change(lambda rules: rules.with_rule(rule))

    async def remove_rule(self, from_: str, to: str) -> None:
        """Remove the rules that have exactly these patterns."""
        self._open.policy.rules.change(lambda rules: rules.without_rule(from_, to))

    async def list_rules(self) -> list[AccessRule]:
        """Return the rules in force; a broken rule file raises."""
        return list(self._open.policy.rules.rules().rules)

    # dead letters and breakers

    async def dead_letters(self, subject: str | None = None) -> list[Letter]:
        """Return the dead letters of one endpoint or of all, oldest first."""
        session = self._open
        if subject is not None:
            validate_subject(subject, allow_wildcards=True)
        session.ledger.flush()
        return dead_letters.list_letters(session, subject)

    async def requeue(self, subject: str, id: str) -> PublishResult:  # noqa: A002 - the word of the API
        """Publish a dead letter again, with a fresh budget."""
        validate_subject(subject, allow_wildcards=True)
        return await dead_letters.requeue(self._open, subject, id)

    async def purge(self, older_than: timedelta = timedelta(days=DEAD_LETTER_KEEP_DAYS)) -> int:
        """Remove older dead letters; return how many went."""
        return dead_letters.purge(self._open, older_than)

    async def on_dead_letter(self, observer: LetterObserver) -> Unsubscribe:
        """Tell `observer` of every dead letter from now on."""
        session = self._open
        follower = await observe_letters(session, observer)

        async def unsubscribe() -> None:
            await session.followers.end(follower)

        return unsubscribe

    async def breakers(self) -> list[BreakerView]:
        """Return the breaker of every endpoint."""
        return endpoints.list_breakers(self._open)

    async def reset_breaker(self, subject: str) -> None:
        """Close the breaker of an endpoint."""
        endpoints.reset_breaker(self._open, endpoints.find_endpoint(self._open, subject))

    # the index

    async def metrics(self) -> Metrics:
        """Count messages by status and subject."""
        session = self._open
        session.ledger.flush()
        return await session.indexing.run(session.indexing.index.metrics)

    async def find_messages(
        self,
        *,
        subject: str | None = None,
        endpoint: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = 1_000,
    ) -> list[IndexRow]:
        """Return messages from the index by subject, endpoint and status, oldest first."""
        session = self._open
        session.ledger.flush()
        hash_ = None if endpoint is None else endpoint_hash(endpoint)
        index = session.indexing.index
        return await session.indexing.run(lambda: index.find(subject, hash_, status, after, limit))

    async def rebuild_index(self) -> int:
        """Make the index anew from the files; return how many messages it has found."""
        session = self._open
        session.ledger.flush()
        return await session.indexing.run(session.indexing.index.rebuild)


def _awaitable(end: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def unsubscribe() -> None:
        end()

    return unsubscribe


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise error("value_invalid", name=name, reason=f"{value!r} is none of {', '.join(choices)}")


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise error("value_invalid", name=name, reason=f"{value!r} is not a positive number")


async def publish_bridged(
    bus: Bus, subject: str, payload: Any, *, from_: str, budget: MeshBudget, reply_to: str | None = None
) -> PublishResult:
    """Store a message from the mesh in every mailbox its subject reaches."""
    session = bus.session
    for name in (subject, from_, *(() if reply_to is None else (reply_to,))):
        validate_subject(name)
    raw = msgspec.Raw(msgspec.json.encode(json_payload(payload)))
    future = session.loop.create_future()
    given = to_bus_budget(budget)
    draft = Draft(subject, raw, from_, future, reply_to=reply_to, given=given, ceiling=MESH_CEILING)
    session.ledger.submit(ReservePublish(session, draft))
    result: PublishResult = await future
    return result
