"""Reconcile the stores of a mesh with its relay, for the case that one side lost history.

A relay restored from a backup has a new epoch: the outbox sends again what such a relay had answered, and the relay
recognizes what it still has. An inbox that was rolled back, or replaced because it was damaged, lacks messages that
this host confirmed: the first connection after a start looks at the newest messages of the relay's history, and if
the inbox lacks a confirmed one it is refilled from the last week. Messages that wait in the queue come by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from posthouse.client import Client, Mailbox
from posthouse.client.messages.gaps import deliver_history
from posthouse.client.stored_events import Stored
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.model.api import MessageStates
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.event import MESSAGE
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.model.message import read_message

log = structlog.get_logger(__name__)
_NEWEST = 50  # messages that show whether the inbox was rolled back
_PAGE = 200
_REFILL_DAYS = 7  # as long as the relay queues a message
_HOUR_NS = 3_600 * SECOND_NS
_AGAIN_S = 30.0  # after a failure that the next connection need not cure
_MAX_TOPICS = 100  # of a filter


class RelayConnection(Protocol):
    """What this module needs of the uplink."""

    @property
    def client(self) -> Client: ...

    @property
    def mailbox(self) -> Mailbox | None: ...

    async def wait_sending(self) -> None: ...


async def find_at_relay(uplink: RelayConnection, message_id: str) -> MessageStates | None:
    """Return a message that the relay has, None if it has not; raises if the relay cannot be asked now."""
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
        keep_days: int,
        clock: Clock,
    ) -> None:
        self._mesh = mesh
        self._outbox = outbox
        self._inbox = inbox
        self._uplink = uplink
        self._is_followed = is_followed
        #: what the inbox has deleted by its age must not come back
        self._refill_ns = min(_REFILL_DAYS, keep_days) * DAY_S * SECOND_NS - _HOUR_NS
        self._clock = clock
        self._is_due = asyncio.Event()
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

    async def run(self) -> None:
        """Reconcile after each connection."""
        while True:
            await self._is_due.wait()
            await self._uplink.wait_sending()
            self._is_due.clear()
            try:
                await self._reconcile()
            except PosthouseError as failure:
                log.info("not_reconciled", mesh=self._mesh, code=failure.code, reason=str(failure))
                await asyncio.sleep(_AGAIN_S)
                self._is_due.set()

    async def _reconcile(self) -> None:
        info = await self._uplink.client.info()
        epoch = info.get("epoch")
        if isinstance(epoch, str):
            since_ns = self._clock.wall_ns() - (self.max_age_h() - 1) * _HOUR_NS
            for destination in await self._outbox.note_relay_epoch(epoch, since_ns):
                self.on_reopened(destination)
        if not self.is_checked:
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
                mailbox = self._uplink.mailbox
                if mailbox is not None:
                    await deliver_history(mailbox, await self._missing(page.events), self._uplink.client.key)
                cursor = page.cursor
                if cursor is None:
                    break

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


def _is_message(stored: Stored) -> bool:
    try:
        read_message(stored.event)
    except PosthouseError:
        return False
    return True
