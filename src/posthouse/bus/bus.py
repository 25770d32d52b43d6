"""The embedded message bus for agents on one machine.

    async with Bus() as bus:
        await bus.register_endpoint("team.alpha")
        await bus.subscribe("team.*", handler)
        await bus.publish("team.alpha", {"content": "hello"}, from_="team.beta")

This is the public interface: every method validates its arguments, checks that the bus is open and calls the part
that does the work; the methods for operators are in its base class. One Bus belongs to the event loop that opened it;
several processes may open the same data directory.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from types import TracebackType
from typing import Any

from posthouse.bus import endpoints, polling
from posthouse.bus.administration import Administration
from posthouse.bus.admission import Draft
from posthouse.bus.handlers import Handler, Subscription, Unsubscribe
from posthouse.bus.options import Durability, Retention, bus_options, check_positive, check_type
from posthouse.bus.refusals import Refusals, check_refusals, result_or_raise
from posthouse.bus.request_reply import OnPartial
from posthouse.bus.results import AckAnswer, Endpoint, PublishResult, SubscriptionView
from posthouse.bus.running import inherit_named, inherit_running
from posthouse.bus.session import Session
from posthouse.bus.signals import SignalHandler
from posthouse.bus.sync import SyncCalls, blocking, blocking_until_removed
from posthouse.bus.taps import Tap, TapHandler, start_tap
from posthouse.bus.transaction import read_depths
from posthouse.files import unusable
from posthouse.model.budget import Budget, CycleRule, GivenBudget
from posthouse.model.clock import Clock, system_clock
from posthouse.model.envelope import Envelope, Signal
from posthouse.model.errors import PosthouseError, error
from posthouse.model.reliability import Reliability
from posthouse.model.subjects import REPLIES, validate_subject


class Bus(Administration):
    """An open data directory; use it as an async context manager.

    A missing argument takes its value from the user's settings: from its environment variable (POSTHOUSE_BUS_DIR,
    POSTHOUSE_BUS_MAX_HOPS and so on), else from the table [bus] of config.toml in the home directory of posthouse, else
    the default. They are read here, once; an invalid setting raises. Without `retention`, the [journal] settings are
    read whenever the journal is pruned. While it is open the bus also follows access-rules.json and config.json of its
    data directory; config.json takes precedence over `reliability`. `refusals`, "raise" or "return", says what publish
    does with a refusal, wherever it is called.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_hops: int | None = None,
        default_ttl_ms: int | None = None,
        default_call_budget: int | None = None,
        durability: Durability | None = None,
        cycle_rule: CycleRule | None = None,
        handler_timeout_s: float | None = None,
        max_attempts: int | None = None,
        max_listeners: int | None = None,
        max_payload_bytes: int | None = None,
        refusals: Refusals | None = None,
        reliability: Reliability | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_refusals(refusals)
        arguments = {
            "max_hops": max_hops,
            "default_ttl_ms": default_ttl_ms,
            "default_call_budget": default_call_budget,
            "durability": durability,
            "cycle_rule": cycle_rule,
            "handler_timeout_s": handler_timeout_s,
            "max_attempts": max_attempts,
            "max_listeners": max_listeners,
            "max_payload_bytes": max_payload_bytes,
        }
        self._options = bus_options(path, arguments, reliability or Reliability(), retention, clock or system_clock())
        self.path = self._options.path
        self._session: Session | None = None
        self._refusals = refusals
        self._sync = SyncBus(self)

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
        if self._session is not None:
            _check_loop(self._session)
            return
        try:
            self._session = await Session.open(self._options)
        except OSError as failure:
            raise unusable(self.path, failure) from failure
        except PosthouseError as failure:
            if failure.code in ("store_not_ours", "store_damaged"):
                failure.hint = _recover_hint(self.path)
            raise

    async def close(self) -> None:
        """Release every lock, descriptor and database; a second call does nothing."""
        session = self._session
        if session is not None:
            _check_loop(session)
            self._session = None
            await session.close()

    async def serve(self) -> None:
        """Serve the subscriptions of this process until it gets SIGINT or SIGTERM, or until the bus is closed."""
        await self._open.serve()

    @property
    def sync(self) -> SyncBus:
        """The same methods as blocking calls, for plain programs, threads and other event loops.

        `with Bus().sync as bus:` opens the bus on a separate thread.
        """
        return self._sync

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that opened this bus; None while it is closed."""
        return None if self._session is None else self._session.core.loop

    @property
    def _open(self) -> Session:
        session = self._opened
        _check_loop(session)
        return session

    @property
    def _opened(self) -> Session:
        session = self._session
        if session is None:
            raise error("bus_closed", path=str(self.path))
        if session.failure is not None:
            raise session.failure
        return session

    # endpoints and subscriptions

    async def register_endpoint(self, subject: str, owner: str | None = None) -> Endpoint:
        """Register an endpoint, or join it as its owner.

        A subject that ends in `>` receives the messages that no literal endpoint matches.
        """
        session = self._open
        endpoint = await endpoints.register(session.core, session.servers, subject, owner)
        session.unrouted.on_registered(subject)
        return endpoint

    async def unregister_endpoint(self, subject: str, force: bool = False) -> None:
        """Remove an endpoint; unread messages need `force` and become dead letters."""
        session = self._open
        endpoint = await endpoints.find_endpoint(session.core, subject)
        await endpoints.unregister(session.core, session.servers, endpoint, force=force)

    async def get_endpoint(self, subject: str) -> Endpoint | None:
        """Return an endpoint by its exact subject."""
        validate_subject(subject, allow_wildcards=True)
        return await self._open.core.ledger.run(lambda tx: tx.registry.by_subject.get(subject))

    async def depths(self) -> dict[str, int]:
        """Return how many messages wait or are being handled, by endpoint; endpoints for replies are left out."""
        depths = await (await self._flushed()).core.ledger.run(lambda tx: read_depths(tx.db))
        return {subject: depth for subject, depth in depths.items() if not subject.startswith(REPLIES)}

    async def list_endpoints(self) -> list[Endpoint]:
        """Return the endpoints of all processes, sorted by subject; those that only carry replies are left out."""
        registry = await self._open.core.ledger.run(lambda tx: tx.registry)
        found = [endpoint for number, endpoint in registry.by_number.items() if number not in registry.private]
        return sorted(found, key=lambda endpoint: endpoint.subject)

    async def subscribe(
        self,
        pattern: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        group: str | None = None,
        handler_timeout_s: float | None = None,
    ) -> Unsubscribe:
        """Pass the messages of matching endpoints that this process registered to `handler`.

        One message at a time, in order, and one process serves an endpoint. `concurrency` lets this process handle
        several messages of an endpoint at once; processes that give the same `group` share the endpoint. Messages then
        start in order and end in any order. A message whose handler takes longer than `handler_timeout_s` becomes a
        dead letter; without it, the limit of the Bus applies. To unsubscribe, call the returned function and await the
        result.
        """
        session = self._open
        ticket = session.subscriptions.add(Subscription(pattern, handler, handler_timeout_s, concurrency, group))
        is_subscribed = True

        async def unsubscribe() -> None:
            nonlocal is_subscribed
            _check_loop(session)
            if is_subscribed and self._session is session:
                is_subscribed = False
                session.subscriptions.remove(ticket)
                await session.servers.on_subscriptions_changed(pattern)
                await session.core.ledger.flush()

        await session.warn_if_unmatched(pattern)
        try:
            await session.servers.on_subscriptions_changed(pattern)
        except PosthouseError:
            await unsubscribe()
            raise
        return unsubscribe

    async def list_subscriptions(self) -> list[SubscriptionView]:
        """Return the subscriptions of this process."""
        return self._open.subscriptions.views()

    async def tap(self, pattern: str, handler: TapHandler, after: str | None = None) -> Tap:
        """Pass every matching message of all processes to `handler`, from now or after a cursor; consumes nothing."""
        return await start_tap(self._open.followers, pattern, handler, after)

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
        ttl_s: float | None = None,
        wait_s: float | None = None,
        refusals: Refusals | None = None,
    ) -> PublishResult:
        """Store a message in every mailbox that the subject reaches; never waits for handlers.

        The message expires after `ttl_s`, or earlier if the bus or its cause allows less. Inside a handler, a publish
        that reaches no mailbox and leaves no dead letter raises PublishRefused; in plain code the result reports it.
        `refusals`, "raise" or "return", overrides that, here or for the whole Bus. With `wait_s` a publish to a subject
        waits up to that long for rate, room and breaker, but no longer than the handler may still run.
        """
        session = self._open
        validate_subject(subject, allow_wildcards=True)
        validate_subject(from_)
        if reply_to is not None:
            validate_subject(reply_to)
        if refusals is not None:
            check_refusals(refusals)
        if budget is not None and not isinstance(budget, GivenBudget | Budget):
            raise error("value_invalid", name="budget", reason=f"{type(budget).__name__} is not a budget")
        if ttl_s is not None:
            check_positive("ttl_s", ttl_s)
        content = session.publisher.encode_small(payload)
        if content is None:
            content = await session.publisher.encode_large(payload)
        if in_reply_to is None:
            inherited, answered = inherit_running(subject)
        else:
            inherited, answered = await inherit_named(session.core, subject, from_, in_reply_to)
        draft = Draft(
            subject,
            content,
            from_,
            reply_to=reply_to,
            inherited=inherited,
            in_reply_to=answered,
            given=budget,
            ttl_ms=None if ttl_s is None else int(ttl_s * 1_000),
        )
        if wait_s is None:
            result = await session.publisher.publish(draft)
        else:
            result = await session.waiting.publish(draft, wait_s)
        return result if result.delivered_to else result_or_raise(draft, result, refusals or self._refusals)

    async def request(
        self,
        subject: str,
        payload: Any,
        *,
        from_: str,
        timeout_s: float,
        budget: GivenBudget | Budget | None = None,
        on_partial: OnPartial | None = None,
    ) -> Envelope:
        """Publish and return the reply, or raise request_timeout, request_undelivered, request_failed, responder_busy.

        The request expires with its timeout, so that no handler works for a caller that no longer waits. `on_partial`
        gets the messages that the responder publishes to `<reply_to>.partial` before its reply.
        """
        check_positive("timeout_s", timeout_s, required=True)
        options: dict[str, Any] = {"from_": from_, "budget": budget, "ttl_s": timeout_s, "refusals": "return"}

        async def publish(reply_to: str) -> PublishResult:
            return await self.publish(subject, payload, reply_to=reply_to, **options)

        return await self._open.requests.request(subject, publish, timeout_s, on_partial)

    async def next(self, subject: str, timeout_s: float | None = None, after: str | None = None) -> Envelope | None:
        """Return the oldest waiting message of an endpoint as soon as there is one; None after `timeout_s`.

        It consumes nothing: the message is returned again until it is acknowledged.
        """
        check_positive("timeout_s", timeout_s)
        return await self._open.next_message(subject, timeout_s, after)

    async def read_inbox(self, subject: str, limit: int = 100, after: str | None = None) -> list[Envelope]:
        """Return waiting messages of an endpoint, oldest first; consumes nothing."""
        return await polling.read_inbox(self._open.core, subject, limit, after)

    async def ack(self, subject: str, id: str) -> AckAnswer:  # noqa: A002 - the word of the API
        """End a waiting message: "acked", "unknown", or "being_served" if a process serves the endpoint."""
        session = self._open
        return await polling.ack(session.core, session.servers, subject, id)

    # signals

    async def signal(self, subject: str, signal: Signal) -> int:
        """Pass a signal to the matching handlers of this process; return how many there are."""
        validate_subject(subject)
        check_type("signal", signal, Signal, required=True)
        return self._open.signals.emit(subject, signal)

    async def on_signal(self, pattern: str, handler: SignalHandler) -> Unsubscribe:
        """Call `handler(subject, signal)` for signals to matching subjects."""
        return self._open.signals.add(pattern, handler)


def _check_loop(session: Session) -> None:
    """Raise bus_foreign_loop unless the caller runs on the loop that opened the bus."""
    if asyncio._get_running_loop() is not session.core.loop:
        raise error("bus_foreign_loop")


def _recover_hint(root: Path) -> str:
    command = shlex.join(["posthouse", "bus", "recover", "--dir", str(root)])
    return f"If the file is damaged, `{command}` renames it and restores the bus from its mailboxes."


class SyncBus(SyncCalls):
    """The methods of a Bus as blocking calls; handlers run on threads, or on the bus's loop if they are async."""

    sweep = blocking(Bus.sweep)
    register_endpoint = blocking(Bus.register_endpoint)
    unregister_endpoint = blocking(Bus.unregister_endpoint)
    get_endpoint = blocking(Bus.get_endpoint)
    list_endpoints = blocking(Bus.list_endpoints)
    depths = blocking(Bus.depths)
    subscribe = blocking_until_removed(Bus.subscribe)
    list_subscriptions = blocking(Bus.list_subscriptions)
    tap = blocking_until_removed(Bus.tap)
    publish = blocking(Bus.publish)
    request = blocking(Bus.request)
    next = blocking(Bus.next)
    read_inbox = blocking(Bus.read_inbox)
    ack = blocking(Bus.ack)
    signal = blocking(Bus.signal)
    on_signal = blocking_until_removed(Bus.on_signal)
    add_rule = blocking(Bus.add_rule)
    remove_rule = blocking(Bus.remove_rule)
    list_rules = blocking(Bus.list_rules)
    dead_letters = blocking(Bus.dead_letters)
    requeue = blocking(Bus.requeue)
    purge = blocking(Bus.purge)
    on_dead_letter = blocking_until_removed(Bus.on_dead_letter)
    breakers = blocking(Bus.breakers)
    reset_breaker = blocking(Bus.reset_breaker)
    metrics = blocking(Bus.metrics)
    find_messages = blocking(Bus.find_messages)
    rebuild_index = blocking(Bus.rebuild_index)
    read_journal = blocking(Bus.read_journal)
    journal_head = blocking(Bus.journal_head)

    def serve(self) -> None:
        """Serve the subscriptions of this process until it gets SIGINT or SIGTERM, or until the bus is closed."""
        self.run_until_signal(self.bus.serve)
