"""The connection of a daemon to its relay: connect, check features, receive into the inbox, reconnect.

One client at a time. The drain may send once the relay has admitted the node. A message is confirmed only after the
inbox has it, so after any failure the relay sends it again and the inbox recognises it; a message that cannot be
decrypted is stored with the reason and rejected. `run` raises only what must end the daemon: another connection of
the same key took over, the relay has a different key, or it lacks a required feature. It waits out everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog

from posthouse.client import Client, Delivery, Mailbox, Pins, Presence, Published
from posthouse.daemon.features import Offer, bounded_max_age_h, read_offer
from posthouse.daemon.inbox.inbox import Inbox, NewItem
from posthouse.daemon.roster import Roster
from posthouse.daemon.settings import DaemonSettings
from posthouse.keys import NodeKey
from posthouse.model.budget import encode_mesh_budget
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, Refused, Transient, error
from posthouse.model.event import Event
from posthouse.model.limits import RECEIVE_WINDOW_MAX

log = structlog.get_logger(__name__)
UNDECRYPTABLE = "undecryptable"


async def receive_into_inbox(
    mailbox: Mailbox, inbox: Inbox, roster: Roster, learn: Callable[[], Awaitable[None]]
) -> None:
    """Store mail and confirm it until the mailbox ends; raises what the store or the mailbox raises.

    `learn` brings the roster up to date; it is called when a sender is not in it, such as one that has just joined.
    """
    while deliveries := await mailbox.take():
        if any(roster.name_of(delivery.sender) is None for delivery in deliveries):
            await learn()
        items = [read_item(delivery, inbox.minter.mint(), roster) for delivery in deliveries]
        await inbox.put(items)
        _confirm_or_reject(mailbox, deliveries, items)


def read_item(delivery: Delivery, item_id: str, roster: Roster) -> NewItem:
    """Return what is stored of a delivery."""
    body, reason = _decrypt(delivery)
    message = delivery.message
    return NewItem(
        id=item_id,
        client_message_id=message.client_message_id,
        message_id=delivery.id,
        mesh=delivery.mesh,
        topic=delivery.topic,
        sender=delivery.sender,
        sender_name=roster.name_of(delivery.sender),
        body=body,
        meta=message.meta,
        reply_to_id=message.reply_to,
        priority=message.priority.value,
        budget=None if message.budget is None else encode_mesh_budget(message.budget),
        undecryptable=reason,
    )


def _decrypt(delivery: Delivery) -> tuple[str | None, str | None]:
    try:
        return delivery.body, None
    except PosthouseError as failure:
        log.warning("mail_undecryptable", message_id=delivery.id, sender=delivery.sender, code=failure.code)
        return None, failure.code


def _confirm_or_reject(mailbox: Mailbox, deliveries: Sequence[Delivery], items: Sequence[NewItem]) -> None:
    readable = [delivery for delivery, item in zip(deliveries, items, strict=True) if item.undecryptable is None]
    if readable:
        mailbox.confirm(*readable)
    for delivery, item in zip(deliveries, items, strict=True):
        if item.undecryptable is not None:
            mailbox.reject(delivery, UNDECRYPTABLE)


_AGAIN_S = 5.0  # after a refusal that only somebody else can lift
_PROBE_S = 2.0  # while the inbox cannot be written
_REFRESH_S = 60.0
_ASKING_S = 2.0  # for somebody who asks who is here
_LEARN_AGAIN_NS = 1_000_000_000
_ENDING = frozenset(
    {
        "feature_unavailable",
        "feature_param_invalid",
        "feature_param_below_floor",
        "outbox_max_age_above_dedupe_window",
    }
)


class Uplink:
    """The way to the relay."""

    def __init__(self, settings: DaemonSettings, key: NodeKey, inbox: Inbox, roster: Roster) -> None:
        self._settings = settings
        self._key = key
        self._inbox = inbox
        self._roster = roster
        self._pins = Pins.of_home() if settings.pins is None else Pins(settings.pins)
        self._instance = secrets.token_hex(8)
        self._learned_ns = -_LEARN_AGAIN_NS
        self._sending = asyncio.Event()
        self._client: Client | None = None
        self._mailbox: Mailbox | None = None
        #: the relay is asked to let this node in again
        self._admission: asyncio.Task[None] | None = None
        self.is_admitted = False
        #: told "connected" or "disconnected"
        self.on_status: Callable[[str], None] = lambda _status: None
        self.on_presence: Callable[[Presence], None] = lambda _presence: None
        #: told what the relay offers and the hours a row may wait
        self.on_offer: Callable[[Offer, int], None] = lambda _offer, _hours: None

    # what others use

    @property
    def is_up(self) -> bool:
        """Whether there is a connection now."""
        return self._client is not None and self._client.is_up

    @property
    def may_send(self) -> bool:
        """Whether something can be sent now."""
        return self._sending.is_set()

    async def wait_sending(self) -> None:
        """Wait until something can be sent."""
        await self._sending.wait()

    async def submit(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send events as one list; without a connection each gets relay_unreachable."""
        if self._client is None:
            return [self._unreachable()] * len(events)
        try:
            return await self._client.submit(events)
        except PosthouseError as failure:
            return [failure] * len(events)

    @property
    def client(self) -> Client:
        """The client, for requests that need the relay now; raises relay_unreachable."""
        if self._client is None or not self._client.is_up:
            raise self._unreachable()
        return self._client

    @property
    def online(self) -> Mapping[str, Any]:
        """The roster of the open mailbox by node; empty without one."""
        return {} if self._mailbox is None or not self.is_up else self._mailbox.roster

    async def refresh(self) -> None:
        """Hear who is in the mesh and which topics it has."""
        client = self.client
        self._roster.take_members(await client.meshes.members(self._settings.mesh))
        self._roster.take_topics(await client.meshes.topics(self._settings.mesh))

    async def resolve(self, to: str) -> str:
        """Return the node id or #topic that a text names; refresh the roster once if it does not know the text."""
        mesh = self._settings.mesh
        try:
            return self._roster.resolve(to, mesh)
        except PosthouseError as unknown:
            if unknown.code not in ("topic_unknown", "member_name_unknown") or not self.is_up:
                raise
        try:
            await self.refresh()
        except PosthouseError as failure:
            if failure.code == "member_key_changed":
                raise
            log.info("roster_not_refreshed", code=failure.code)
        return self._roster.resolve(to, mesh)

    async def freshen(self) -> None:
        """Refresh for somebody who asks who is here, unless that was just done; a slow relay is not waited for."""
        if self.is_up:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASKING_S):
                    await self._learn()

    # the life of the connection

    async def run(self) -> None:
        """Keep connected; ends only by raising what ends the daemon."""
        while True:
            client = self._client = self._make_client()
            try:
                await client.connect(is_patient=True)
                await self._stay(client)
            except PosthouseError as failure:
                if failure.code in _ENDING or failure.spec.exit is Exit.IDENTITY:
                    raise
                log.error("uplink_failed", code=failure.code, reason=str(failure))
            finally:
                self._close_gate()
                self.is_admitted = False
                self._client = self._mailbox = None
                await client.close()
            await asyncio.sleep(_AGAIN_S)

    async def _stay(self, client: Client) -> None:
        refreshing = asyncio.create_task(self._keep_fresh())
        try:
            while True:
                await self._wait_writable()
                mailbox = await self._open(client)
                if mailbox is None:
                    await asyncio.sleep(_AGAIN_S)
                    continue
                await self._read(mailbox)
        finally:
            refreshing.cancel()

    async def _open(self, client: Client) -> Mailbox | None:
        """Open the mailbox; None when the relay does not let this node in for now."""
        try:
            mailbox = await client.receive(
                self._settings.mesh,
                window=RECEIVE_WINDOW_MAX,
                instance=self._instance,
                on_confirmed=lambda _items: None,
                on_presence=self._presence,
            )
        except Refused as failure:
            if failure.spec.exit is Exit.IDENTITY:
                raise
            self.is_admitted = False
            self._close_gate()
            log.warning("mailbox_refused", code=failure.code, reason=str(failure))
            return None
        self._mailbox = mailbox
        self._roster.take_online(mailbox.roster)
        self.is_admitted = True
        self._sending.set()
        return mailbox

    async def _read(self, mailbox: Mailbox) -> None:
        try:
            await receive_into_inbox(mailbox, self._inbox, self._roster, self._learn)
        except Transient as failure:  # the inbox cannot be written: what came stays with the relay
            log.error("inbox_not_writable", code=failure.code, reason=str(failure))
        finally:
            self._mailbox = None
            await mailbox.close()

    async def _wait_writable(self) -> None:
        while True:
            try:
                await self._inbox.probe()
                return
            except Transient as failure:
                log.debug("inbox_still_not_writable", code=failure.code)
                await asyncio.sleep(_PROBE_S)

    async def _keep_fresh(self) -> None:
        while True:
            await self._try_refresh()
            await asyncio.sleep(_REFRESH_S)

    async def _learn(self) -> None:
        """Refresh, unless that was done a moment ago; guests of an open mesh stay unknown, so not for each of them."""
        now_ns = self._settings.clock.boot_ns()
        if now_ns - self._learned_ns >= _LEARN_AGAIN_NS:
            self._learned_ns = now_ns
            await self._try_refresh()

    async def _try_refresh(self) -> None:
        try:
            await self.refresh()
        except PosthouseError as failure:
            log.info("roster_not_refreshed", code=failure.code, reason=str(failure))

    def _make_client(self) -> Client:
        settings = self._settings
        client = Client(
            settings.relay,
            self._key,
            mesh=settings.mesh,
            pins=self._pins,
            options=settings.client,
            clock=settings.clock,
            check_features=self._check_features,
        )
        client.observe(self._up, self._lost)
        return client

    def _check_features(self, features: Mapping[str, Any]) -> None:
        offer = read_offer(features)
        hours = bounded_max_age_h(offer.retention_days, self._settings.outbox_max_age_h)
        self._roster.take_retention(-1 if offer.retention_days is None else offer.retention_days)
        self.on_offer(offer, hours)

    def _up(self) -> None:
        log.info("relay_connected", relay=self._settings.relay)
        if self._mailbox is not None:
            self._admission = asyncio.create_task(self._wait_admitted(self._mailbox))
        elif self.is_admitted:
            self._sending.set()
        self.on_status("connected")

    async def _wait_admitted(self, mailbox: Mailbox) -> None:
        """Let the drain go on once the relay has let this node in again: before, it might refuse for want of rights."""
        try:
            await mailbox.wait_open()
        except PosthouseError:  # whoever reads the mailbox gets it too
            return
        if self._mailbox is mailbox and self.is_up:
            self._sending.set()

    def _lost(self, code: int | None, reason: str) -> None:
        log.info("relay_lost", relay=self._settings.relay, code=code, reason=reason)
        self._close_gate()
        self.on_status("disconnected")

    def _close_gate(self) -> None:
        self._sending.clear()
        if self._admission is not None:
            self._admission.cancel()
            self._admission = None

    def _presence(self, presence: Presence) -> None:
        self._roster.take_online([presence.node])
        self.on_presence(presence)

    def _unreachable(self) -> PosthouseError:
        return error("relay_unreachable", relay=self._settings.relay, reason="there is no connection")
