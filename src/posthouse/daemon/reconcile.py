"""Reconcile the stores of a mesh with its relay after one side has lost history.

A relay restored from a backup has a new epoch: the outbox sends again the messages that the relay had answered before,
and the relay recognizes those that it still has. An inbox that was rolled back, or replaced because it was damaged,
lacks messages that this host confirmed: the first connection after a start checks the newest messages of the relay's
history, and if the inbox lacks a confirmed one it is refilled. Messages that wait in the queue are delivered anyway. An
outbox restored from a backup gets rows for the messages that this host has sent since, so that their ids stay in use
and threads stay complete. A lost connection ends the work, and the next one begins it again: everything here may be
repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from posthouse.client import Client, Mailbox
from posthouse.client.messages.gaps import deliver_history
from posthouse.client.messages.sender import TOPIC_MARK
from posthouse.client.stored_events import Stored
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.outbox_rows import NewRow, SentBefore
from posthouse.daemon.settings import KEEP_DAYS
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import MESSAGE, Event, encode_event
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.model.message import Message, fingerprint, read_message
from posthouse.model.message_api import MessageStates
from posthouse.model.ulid import UlidGenerator

log = structlog.get_logger(__name__)
_NEWEST = 50  # messages that show whether the inbox was rolled back
_PAGE = 200
_HOUR_NS = 3_600 * SECOND_NS
_AGAIN_S = 30.0  # after a failure that the next connection may not fix
_MAX_TOPICS = 100  # of a filter


class RelayConnection(Protocol):
    """The part of the uplink that this module uses."""

    @property
    def client(self) -> Client: ...

    @property
    def mailbox(self) -> Mailbox | None: ...

    async def wait_sending(self) -> None: ...


async def find_at_relay(uplink: RelayConnection, message_id: str) -> MessageStates | None:
    """Return a message from the relay, None if it does not have it; raises if the relay is not reachable now."""
    try:
        return await uplink.client.message(message_id)
    except PosthouseError as failure:
        if failure.code == "message_unknown":
            return None
        raise


class Reconciler:
    """Compares outbox and inbox with the relay after each connection."""

    def __init__(
        self,
        mesh: str,
        outbox: Outbox,
        inbox: Inbox,
        uplink: RelayConnection,
        is_followed: Callable[[str], bool],
        open_event: Callable[[Event], str],
        keep_days: int,
        clock: Clock,
    ) -> None:
        self._mesh = mesh
        self._outbox = outbox
        self._inbox = inbox
        self._uplink = uplink
        self._is_followed = is_followed
        self._open_event = open_event
        #: messages that the inbox has deleted because of their age must not come back
        self._refill_ns = keep_days * DAY_S * SECOND_NS - _HOUR_NS
        self._clock = clock
        self._minter = UlidGenerator(clock)
        self._is_due = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        #: True if the stores come from a backup and have not been compared with the relay yet
        self.is_restored = False
        #: True once outbox and inbox were compared with the relay
        self.is_checked = False
        #: callback once outbox and inbox were compared with the relay
        self.on_checked: Callable[[], None] = lambda: None
        #: callback(destination) for each destination that has rows to send again
        self.on_reopened: Callable[[str], None] = lambda _destination: None
        #: returns the hours that a row may wait
        self.max_age_h: Callable[[], int] = lambda: 0

    def wake(self) -> None:
        """Reconcile soon: there is a new connection."""
        self._is_due.set()

    def interrupt(self) -> None:
        """Cancel requests whose connection was lost; the next connection begins again."""
        if self._work is not None:
            self._work.cancel()

    async def run(self) -> None:
        """Reconcile after each connection."""
        while True:
            await self._is_due.wait()
            await self._uplink.wait_sending()
            self._is_due.clear()
            self._work = asyncio.create_task(self._reconcile())
            try:
                await asyncio.wait([self._work])
                failure = None if self._work.cancelled() else self._work.exception()
            finally:
                self._work.cancel()
                self._work = None
            if isinstance(failure, PosthouseError):
                log.info("not_reconciled", mesh=self._mesh, code=failure.code, reason=str(failure))
                await asyncio.sleep(_AGAIN_S)
                self._is_due.set()
            elif failure is not None:
                raise failure

    async def _reconcile(self) -> None:
        info = await self._uplink.client.info()
        epoch = info.get("epoch")
        if isinstance(epoch, str):
            since_ns = self._clock.wall_ns() - (self.max_age_h() - 1) * _HOUR_NS
            for destination in await self._outbox.note_relay_epoch(epoch, since_ns):
                self.on_reopened(destination)
        if not self.is_checked:
            if self.is_restored:
                await self._refill_outbox()
            if await self._is_inbox_behind():
                await self._refill()
            self.is_checked = True
            self.on_checked()

    async def _is_inbox_behind(self) -> bool:
        """Return True if the inbox lacks one of the newest messages that this host has confirmed."""
        newest: list[Stored] = []
        for wanted in await self._filters():
            page = await self._uplink.client.query(wanted, limit=_NEWEST, order="desc")
            newest += page.events
        return bool(await self._missing(newest, limit=1))

    async def _refill(self) -> None:
        log.warning("inbox_refilled", mesh=self._mesh)
        for wanted in await self._filters():
            cursor: str | None = None
            while True:
                page = await self._uplink.client.query(wanted, limit=_PAGE, cursor=cursor)
                missing = await self._missing(page.events)
                mailbox = self._uplink.mailbox
                if mailbox is None:  # such as while the inbox cannot be written
                    raise error(
                        "relay_unreachable", relay=self._uplink.client.url.origin, reason="the mailbox is closed"
                    )
                await deliver_history(mailbox, missing, self._uplink.client.key)
                cursor = page.cursor
                if cursor is None:
                    break

    async def _refill_outbox(self) -> None:
        """Add rows for messages of this host that the relay has and a restored outbox lacks."""
        client, cursor, count = self._uplink.client, None, 0
        since_ns = self._clock.wall_ns() - KEEP_DAYS * DAY_S * SECOND_NS
        wanted = {"kinds": [MESSAGE], "mesh": self._mesh, "authors": [client.key.node], "since_ns": since_ns}
        while True:
            page = await client.query(wanted, limit=_PAGE, cursor=cursor)
            sent = [self._sent_before(each) for each in page.events if _is_message(each)]
            count += await self._outbox.add_sent([each for each in sent if each is not None])
            cursor = page.cursor
            if cursor is None:
                break
        if count:
            log.warning("outbox_refilled", mesh=self._mesh, rows=count)

    def _sent_before(self, stored: Stored) -> SentBefore | None:
        """Return the row of a message that this host has sent; None if its text cannot be opened."""
        event, message = stored.event, read_message(stored.event)
        try:
            body = self._open_event(event).encode()
        except PosthouseError:
            return None
        kind, ref = message.destination_kind, message.destination_ref
        row = NewRow(
            self._minter.mint(),
            message.client_message_id,
            fingerprint(kind, ref, message.reply_to, message.priority, message.meta, body),
            event.id,
            encode_event(event),
            _destination(message),
            message.from_agent,
            message.to_agent,
            message.reply_to,
        )
        return SentBefore(row, stored.seq, event.created_at_ns)

    async def _filters(self) -> list[dict[str, Any]]:
        """Return the filters of recent direct messages to this host, and of the topics that its agents follow."""
        since_ns = self._clock.wall_ns() - self._refill_ns
        base: Mapping[str, Any] = {"kinds": [MESSAGE], "mesh": self._mesh, "since_ns": since_ns}
        client = self._uplink.client
        filters = [{**base, "#p": [client.key.node]}]
        listed = await client.meshes.topics(self._mesh)
        topics = [topic for topic in listed if self._is_followed(topic)][:_MAX_TOPICS]
        return [*filters, {**base, "#t": topics}] if topics else filters

    async def _missing(self, candidates: Sequence[Stored], limit: int | None = None) -> list[Stored]:
        """Return the messages that this host confirmed and the inbox lacks."""
        client = self._uplink.client
        foreign = [each for each in candidates if each.event.pubkey != client.key.node and _is_message(each)]
        known = await self._inbox.known_messages([each.event.id for each in foreign])
        missing: list[Stored] = []
        for each in foreign:
            if each.event.id in known:
                continue
            states = await client.message(each.event.id)
            if any(one.recipient == client.key.node and one.state == "confirmed" for one in states.deliveries):
                missing.append(each)
                if limit is not None and len(missing) >= limit:
                    break
        return missing


def _destination(message: Message) -> str:
    return TOPIC_MARK + message.destination_ref if message.recipient is None else message.recipient


def _is_message(stored: Stored) -> bool:
    try:
        read_message(stored.event)
    except PosthouseError:
        return False
    return True
