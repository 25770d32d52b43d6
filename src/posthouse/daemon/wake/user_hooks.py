"""Hooks of the user: commands that the daemon runs for events, from `[[hook]]` in the settings file.

Events are records of journals, so a hook has a cursor: it gets each event at least once and in order, including those
that happened while the daemon or the hook was down. The cursor moves after the command has run; a crash between the two
repeats the command with the same event id. An event whose command fails three times is parked (parked_events) and tried
again later, while the next event follows: none is skipped. A hook that is new starts with the next event. Commands get
ids and names, never the text of a message, and a token with which they may read the message of their event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import apsw
import msgspec
import structlog

from posthouse.daemon.wake.parked_events import ParkedEvent, ParkedEvents, retry_s
from posthouse.daemon.wake.run_command import SHELL, run_command
from posthouse.journal.append import JournalTransaction
from posthouse.journal.cursor import Cursor, Extent, parse_cursor, resolve_cursor
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after, read_extent
from posthouse.journal.store import Store
from posthouse.keys import new_token
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.limits import SECOND_NS
from posthouse.model.user_hook import UserHook
from posthouse.storage.sql_files import Statements

log = structlog.get_logger(__name__)
SQL = Statements("posthouse.daemon.wake", "user_hooks.sql")
CONCURRENCY = 8
ATTEMPTS = 3
_RETRY_S = (1.0, 10.0)  # between the first attempts
_LOOK_S = 1.0  # for events that no callback reported
_LAG_RECORDS = 1_000  # records of other types after which the cursor moves past them, so that they can be pruned
#: event -> kind of store, and the record that reports it
RECORDS: dict[str, tuple[str, str]] = {
    "received": ("inbox", "inbox.received"),
    "dead": ("outbox", "outbox.dead"),
    "confirmed": ("outbox", "outbox.confirmed"),
    "connected": ("home", "uplink.connected"),
    "lost": ("home", "uplink.lost"),
}
LIFETIME_S = 300  # of a token, if its command runs that long
_SENDING = frozenset({("POST", "/v1/send"), ("POST", "/v1/topic/post"), ("GET", "/v1/version")})
_READING = frozenset({("GET", "/v1/inbox/{id}"), ("GET", "/v1/outbox/{id}"), ("GET", "/v1/messages/{id}")})


class Scope(NamedTuple):
    """The permissions of the token of one command: reading the message of its event, and sending."""

    #: the id that its event is about
    ref: str | None
    ends_at_ns: int

    def check(self, method: str, route: str, item: str | None) -> None:
        """Raise token_scope_exceeded for a request that the token is not for."""
        is_allowed = (method, route) in _SENDING or ((method, route) in _READING and item == self.ref)
        if not is_allowed:
            raise error("token_scope_exceeded", path=route)


class ScopedTokens:
    """The tokens of hooks that run now; in memory, so they end with the daemon."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scopes: dict[str, Scope] = {}

    @contextmanager
    def issue(self, ref: str | None) -> Iterator[str]:
        """Give a token for one event while the block runs, five minutes at most."""
        token = new_token()
        self._scopes[token] = Scope(ref, self._clock.boot_ns() + LIFETIME_S * SECOND_NS)
        try:
            yield token
        finally:
            del self._scopes[token]

    def find(self, token: str) -> Scope | None:
        """Return the scope of a token that is valid now."""
        scope = self._scopes.get(token)
        return None if scope is None or self._clock.boot_ns() >= scope.ends_at_ns else scope


class Source(NamedTuple):
    """A journal that reports events."""

    #: "" for the home
    mesh: str
    #: inbox, outbox or home
    kind: str
    store: Store


class Attempt(NamedTuple):
    """One run of a hook's command."""

    event_id: str
    mesh: str | None
    #: what the token of the command permits
    ref: str | None
    #: environment of the command
    command_environment: Mapping[str, str]
    #: 1 for the first
    number: int


class HookEvent(NamedTuple):
    """One event, as a hook sees it."""

    id: str
    record: Record
    body: Mapping[str, Any]
    sender_name: str | None

    @property
    def agents(self) -> Sequence[str]:
        """The agents whose inboxes got a message."""
        return self.body.get("agents") or ("",)

    @property
    def topic(self) -> str:
        """The topic of a message, empty if it is direct."""
        return str(self.body.get("topic", ""))

    @property
    def senders(self) -> Sequence[str]:
        """The names that the sender of a message is known by."""
        return [each for each in (self.sender_name, self.record.actor) if each] or ("",)

    def environment(self, event: str) -> dict[str, str]:
        """Return the environment of the command."""
        given = {
            "POSTHOUSE_EVENT": event,
            "POSTHOUSE_EVENT_ID": self.id,
            "POSTHOUSE_MESH": self.record.mesh,
            "POSTHOUSE_REF": self.record.ref,
            "POSTHOUSE_MESSAGE_ID": self.body.get("message_id"),
            "POSTHOUSE_CLIENT_MESSAGE_ID": self.body.get("client_message_id"),
            "POSTHOUSE_FROM": self.sender_name or self.record.actor,
            "POSTHOUSE_TOPIC": self.body.get("topic"),
            "POSTHOUSE_AGENT": self.agents[0] or None,
            "POSTHOUSE_CODE": self.body.get("code"),
        }
        return {name: str(value) for name, value in given.items() if value is not None}

    def attempt(self, event: str, number: int) -> Attempt:
        """Return the given attempt at this event."""
        return Attempt(self.id, self.record.mesh, self.record.ref, self.environment(event), number)


class UserHooks:
    """Runs the hooks of one home."""

    def __init__(
        self,
        hooks: Sequence[UserHook],
        home: Store,
        sources: Callable[[], Iterable[Source]],
        name_of: Callable[[str], str | None],
        tokens: ScopedTokens,
    ) -> None:
        self.hooks = hooks
        self._home = home
        self._sources = sources
        self._name_of = name_of
        self._tokens = tokens
        self._free = asyncio.Semaphore(CONCURRENCY)
        self._wakeups = {hook.name: asyncio.Event() for hook in hooks}
        self._recording: set[asyncio.Task[None]] = set()
        self.parked = ParkedEvents(home)
        #: address of the local API, for the commands
        self.url: str | None = None

    def notify(self) -> None:
        """Let the hooks read new events."""
        for wakeup in self._wakeups.values():
            wakeup.set()

    async def prepare(self) -> None:
        """Give new hooks their cursors: they start with the next event; the cursors of a removed hook are deleted."""
        names = msgspec.json.encode(list(self._wakeups)).decode()
        await self._home.writer.run(lambda tx: tx.db.execute(SQL.delete_others, (names,)).fetchall())
        await self.parked.keep_only(list(self._wakeups))
        await self.begin(self._sources())

    async def begin(self, sources: Iterable[Source]) -> None:
        """Give the hooks their cursors in journals that they might not have read yet, before events are added there."""
        for source in sources:
            for hook in self.hooks:
                if source.kind == RECORDS[hook.event][0]:
                    await self._position(hook, source)

    async def run(self) -> None:
        """Run every hook until cancelled."""
        async with asyncio.TaskGroup() as group:
            for hook in self.hooks:
                group.create_task(self._follow(hook))
                group.create_task(self._retry_parked(hook))

    def note_uplink(self, mesh: str, relay: str, *, is_connected: bool) -> None:
        """Record that a mesh was connected to its relay or lost it; hooks for it run after the commit."""
        task = asyncio.get_running_loop().create_task(self._record_uplink(mesh, relay, is_connected))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)

    async def _record_uplink(self, mesh: str, relay: str, is_connected: bool) -> None:
        record = "uplink.connected" if is_connected else "uplink.lost"
        try:
            await self._home.writer.run(lambda tx: tx.append(record, mesh=mesh, ref=relay))
        except PosthouseError as failure:
            log.warning("uplink_not_recorded", code=failure.code, mesh=mesh)
        self.notify()

    async def close(self) -> None:
        """Wait for what is being recorded."""
        await asyncio.gather(*self._recording)

    async def kept_after(self, store: Store) -> int | None:
        """Return the seq after which a hook still needs the records of a journal; None if no hook does."""
        needed: list[int] = []
        for source in self._sources():
            if source.store is store:
                wanted = [hook for hook in self.hooks if RECORDS[hook.event][0] == source.kind]
                needed += [await self._position(hook, source) for hook in wanted]
        return min(needed, default=None)

    async def _follow(self, hook: UserHook) -> None:
        kind, record_type = RECORDS[hook.event]
        wakeup = self._wakeups[hook.name]
        while True:
            wakeup.clear()
            try:
                for source in [each for each in self._sources() if each.kind == kind]:
                    while await self._run_some(hook, source, record_type):
                        pass
            except* Transient as failures:  # a full disk: the events stay in their journals
                log.warning("hook_waits", hook=hook.name, reason=str(failures.exceptions[0]))
            try:
                async with asyncio.timeout(_LOOK_S):
                    await wakeup.wait()
            except TimeoutError:
                continue

    async def _run_some(self, hook: UserHook, source: Source, record_type: str) -> bool:
        """Run a hook for the next events of a journal, then move its cursor; return False if there is no event."""
        head = (await source.store.pool.run(read_extent)).head
        seq = await self._position(hook, source)
        records = await source.store.pool.run(lambda db: read_after(db, seq, CONCURRENCY, {record_type}))
        if not records:
            if head - seq > _LAG_RECORDS:
                await self._move(hook, source, Cursor(source.store.epoch, head))
            return False
        async with asyncio.TaskGroup() as group:
            for record in records:
                group.create_task(self._run(hook, source, record))
        await self._move(hook, source, Cursor(source.store.epoch, records[-1].seq))
        return True

    async def _position(self, hook: UserHook, source: Source) -> int:
        extent = await source.store.pool.run(read_extent)
        stored = await self._home.pool.run(lambda db: _read_cursor(db, hook.name, source))
        if stored is None:
            await self._move(hook, source, extent.cursor(extent.head))
            return extent.head
        return _resolve(extent, stored)

    async def _move(self, hook: UserHook, source: Source, cursor: Cursor) -> None:
        row = (hook.name, source.mesh, source.kind, str(cursor))
        await self._home.writer.run(lambda tx: tx.db.execute(SQL.put_cursor, row).fetchall())

    async def _run(self, hook: UserHook, source: Source, record: Record) -> None:
        sender = None if record.actor is None else self._name_of(record.actor)
        event = HookEvent(str(Cursor(source.store.epoch, record.seq)), record, record.decoded_body(), sender)
        if not hook.match.accepts(record.mesh or "", event.agents, event.topic, event.senders):
            return
        if await self.parked.has(hook.name, event.id):
            return  # the daemon died after it had parked the event and before the cursor moved
        attempt = 1
        while (exit_code := await self._attempt(hook, event.attempt(hook.event, attempt))) != 0:
            if attempt >= ATTEMPTS and await self._park(hook, event, attempt, exit_code):
                return
            await asyncio.sleep(_RETRY_S[attempt - 1] if attempt < ATTEMPTS else retry_s(attempt, ATTEMPTS))
            attempt += 1

    async def _park(self, hook: UserHook, event: HookEvent, attempts: int, exit_code: int) -> bool:
        """Park an event after its last attempt; return False if the hook has no room and must retry it."""
        now_ns = self._home.clock.wall_ns()
        environment = msgspec.json.encode(event.environment(hook.event)).decode()
        next_at_ns = now_ns + retry_s(attempts, ATTEMPTS) * SECOND_NS
        record = event.record
        parked = ParkedEvent(
            hook.name, event.id, record.mesh, record.ref, environment, attempts, exit_code, now_ns, next_at_ns
        )
        is_parked = await self.parked.park(parked)
        log.warning("hook_failed", hook=hook.name, event_id=event.id, exit=exit_code, is_parked=is_parked)
        return is_parked

    async def _retry_parked(self, hook: UserHook) -> None:
        """Retry the parked events of a hook when they are due."""
        while True:
            try:
                for event in await self.parked.due(hook.name, CONCURRENCY):
                    exit_code = await self._attempt(
                        hook,
                        Attempt(event.event_id, event.mesh, event.ref, event.command_environment, event.attempts + 1),
                    )
                    if exit_code == 0:
                        await self.parked.remove(event)
                    else:
                        await self.parked.put_off(event, exit_code, ATTEMPTS)
            except Transient as failure:
                log.warning("hook_waits", hook=hook.name, reason=str(failure))
            await asyncio.sleep(_LOOK_S)

    async def _attempt(self, hook: UserHook, given: Attempt) -> int:
        """Run the command of a hook once, and return its exit code."""
        async with self._free:
            with self._tokens.issue(given.ref) as token:
                address = {} if self.url is None else {"POSTHOUSE_URL": self.url}
                env = {**given.command_environment, **address, "POSTHOUSE_TOKEN": token}
                ended = await run_command((SHELL, "-c", hook.command), env, hook.timeout_s, self._home.clock)
        body = {"event_id": given.event_id, "attempt": given.number, "exit": ended.exit, "ms": ended.ms}
        body |= {"timeout": True} if ended.is_timeout else {}
        await self._home.writer.run(lambda tx: _journal(tx, hook.name, given.mesh, body))
        return ended.exit


def _resolve(extent: Extent, stored: str) -> int:
    """Return where a stored cursor continues in a journal that may be of another epoch, or pruned."""
    try:
        return resolve_cursor(extent, stored)
    except PosthouseError as moved:
        log.warning("hook_cursor_moved", code=moved.code)
        return parse_cursor(str(moved.fields["cursor"])).seq


def _read_cursor(db: apsw.Connection, hook: str, source: Source) -> str | None:
    found: str | None = db.execute(SQL.cursor, (hook, source.mesh, source.kind)).get
    return found


def _journal(tx: JournalTransaction, hook: str, mesh: str | None, body: dict[str, Any]) -> None:
    tx.append("hook.run", mesh=mesh, ref=hook, body=body)
