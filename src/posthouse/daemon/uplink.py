"""The connection of a daemon to its relay: connect, check features, receive into the inbox, reconnect.

One client at a time. The drain may send once the relay has admitted the node. A message is confirmed only after the
inbox has it, so after any failure the relay sends it again and the inbox recognizes it; a message that cannot be
decrypted is stored with the reason and rejected. `run` raises only failures that end the daemon: another connection of
the same key took over, the relay has a different key, or it lacks a required feature. It retries after any other.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from posthouse.client import Client, Confirmed, Delivery, Mailbox, Pins, Presence, Published, Receipt
from posthouse.client.meshes import RotatedMember
from posthouse.client.messages.receipts import RECEIPTS_FEATURE
from posthouse.client.messages.receiver import AGENTS_FEATURE
from posthouse.client.trust.signing import sign_again, sign_event
from posthouse.daemon.clock_watch import TOLERANCE_NS, ClockWatch
from posthouse.daemon.features import OFFER_REFUSALS, Offer, bounded_max_age_h, read_offer
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.inbox.inbox_items import NewItem
from posthouse.daemon.mailroom import Mailroom, delivered_item, rejection_reason
from posthouse.daemon.own_posts import OwnPosts
from posthouse.daemon.roster import Retained, Roster
from posthouse.daemon.settings import MeshSettings
from posthouse.keys import NodeKey
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, Refused, Transient, error
from posthouse.model.event import PROFILE, Coordinate, Event
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS, MILLISECOND_NS, RECEIVE_WINDOW_MAX, SECOND_NS
from posthouse.model.profile import AgentListing, AgentProfile, read_agents
from posthouse.model.receipt import ReceiptState

log = structlog.get_logger(__name__)
UNDECRYPTABLE = "undecryptable"
#: half of what a relay accepts: its clock may lag
REDATED_AHEAD_NS = CREATED_AT_MAX_AHEAD_NS // 2
_AGAIN_S = 5.0  # after a refusal that only an administrator can lift
_PROBE_S = 2.0  # while the inbox cannot be written
_REFRESH_EVERY_S = 60.0
#: a newer roster may resolve what these codes refuse
_MAYBE_OUTDATED = frozenset({"topic_unknown", "member_name_unknown", "member_key_changed"})
_REFRESH_TIMEOUT_S = 2.0  # while a local request waits for it
_REFRESH_MIN_NS = 1_000_000_000  # between refreshes that senders and requests cause
#: statuses of a login that the relay did not accept: a later proof may succeed, with a correct clock or faster network
_LOGIN_STATUSES = frozenset({401, 408})


def _is_final(failure: PosthouseError) -> bool:
    """Return True if reconnecting cannot fix a failure, so the daemon ends."""
    is_identity = failure.spec.exit is Exit.IDENTITY and failure.spec.status not in _LOGIN_STATUSES
    return is_identity or failure.code in OFFER_REFUSALS


def _has_agent(event: Event) -> bool:
    return any(tag[0] in ("from", "to") for tag in event.tags)


class Uplink:
    """The connection to the relay."""

    def __init__(
        self,
        settings: MeshSettings,
        key: NodeKey,
        inbox: Inbox,
        mailroom: Mailroom,
        own_posts: OwnPosts,
        roster: Roster,
        clock_watch: ClockWatch,
    ) -> None:
        self._settings = settings
        self._key = key
        self._inbox = inbox
        self._mailroom = mailroom
        self._own_posts = own_posts
        self._roster = roster
        self._pins = Pins.of_home() if settings.pins is None else Pins(settings.pins)
        self._instance = secrets.token_hex(8)
        self._refreshed_ns = -_REFRESH_MIN_NS
        self._sending = asyncio.Event()
        self._client: Client | None = None
        self._failure: PosthouseError | None = None  # of the last client
        #: agents in profiles fetched on the current connection, by node
        self._fetched: dict[str, tuple[AgentProfile, ...] | None] = {}
        self.mailbox: Mailbox | None = None
        self._admission: asyncio.Task[None] | None = None  # waits until the relay has admitted this node again
        self.is_admitted = False
        #: why the relay does not admit this node
        self.refusal: PosthouseError | None = None
        self.connections = 0  # so far
        self.clock_watch = clock_watch
        #: callback(task) when a task other than `run` ends
        self.on_task_end: Callable[[asyncio.Task[None]], None] = lambda _task: None
        #: callback(confirmations of own messages)
        self.on_confirmed: Callable[[Sequence[Confirmed]], None] = lambda _items: None
        #: callback(receipts of own messages)
        self.on_receipts: Callable[[Sequence[Receipt]], None] = lambda _receipts: None
        self.on_may_send: Callable[[], None] = lambda: None
        #: callback("connected" or "disconnected")
        self.on_status: Callable[[str], None] = lambda _status: None
        self.on_presence: Callable[[Presence], None] = lambda _presence: None
        #: callback(member) after a member's key was replaced by one that it had signed
        self.on_rotated: Callable[[RotatedMember], None] = lambda _member: None
        #: callback(the relay's offer, hours that a row may wait)
        self.on_offer: Callable[[Offer, int], None] = lambda _offer, _hours: None

    @property
    def is_up(self) -> bool:
        """True if there is a connection now."""
        return self._client is not None and self._client.is_up

    @property
    def may_send(self) -> bool:
        """True if messages can be sent now."""
        return self._sending.is_set()

    @property
    def trusts_clock(self) -> bool:
        """True if this machine's clock may decide what is too old."""
        return self.clock_watch.is_plausible

    @property
    def connect_error(self) -> PosthouseError | None:
        """Why there is no connection; None while there is one, or before the first attempt has failed."""
        tried = None if self._client is None else self._client.connect_error
        return None if self.is_up else tried or self._failure

    async def wait_sending(self) -> None:
        """Wait until messages can be sent."""
        await self._sending.wait()

    async def submit(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send events as one list; without a connection the answer to each is relay_unreachable."""
        if self._client is None:
            return [self._unreachable()] * len(events)
        if not self.supports(AGENTS_FEATURE) and any(_has_agent(event) for event in events):
            return await self._submit_without_agents(events)
        try:
            return await self._client.submit([self._current(event) for event in events])
        except PosthouseError as failure:
            return [failure] * len(events)

    def _current(self, event: Event) -> Event:
        """Return an event as the relay accepts it now: signed by the current key, and not in the future.

        To the relay it is a retry of the same message, if it has one of the events already.
        """
        event = sign_again(self._key, event)
        now_ns = self.clock_watch.earliest_ns
        if now_ns is None or event.created_at_ns - now_ns <= REDATED_AHEAD_NS:
            return event
        return sign_event(self._key, event.kind, event.content, event.tags, now_ns)

    async def _submit_without_agents(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send mail between hosts; mail of agents waits, because this relay would mix up their ids."""
        refusal = error("relay_too_old", feature=AGENTS_FEATURE, purpose="mail of agents to other hosts")
        plain = [event for event in events if not _has_agent(event)]
        answers = iter(await self.submit(plain) if plain else [])
        return [refusal if _has_agent(event) else next(answers) for event in events]

    @property
    def is_too_old_for_agents(self) -> bool:
        """True while the relay of the current connection does not support agents."""
        return self.is_up and not self.supports(AGENTS_FEATURE)

    def supports(self, feature: str) -> bool:
        """Return True if the relay of the current connection offers a feature."""
        return self._client is not None and self._client.supports(feature)

    @property
    def client(self) -> Client:
        """The client, for requests that need the relay now; raises relay_unreachable."""
        if self._client is None or not self._client.is_up:
            raise self._unreachable()
        return self._client

    @property
    def online(self) -> Mapping[str, Any]:
        """The roster of the open mailbox by node; empty without one."""
        mailbox = self.mailbox
        return mailbox.roster if mailbox is not None and mailbox.is_open and self.is_up else {}

    def show_online(self, agents: Sequence[str]) -> None:
        """Show the mesh which agents of this host are online."""
        if self.mailbox is not None and self.mailbox.agents != tuple(agents):
            self.mailbox.set_agents(agents)

    def listed_agents(self) -> Mapping[str, tuple[AgentProfile, ...] | None]:
        """Return the agents that were listed on the current connection, by node."""
        shown = {node: entry.agents for node, entry in self.online.items() if entry.agents is not None}
        return self._fetched | shown

    async def agents_of(self, node: str) -> AgentListing | None:
        """Return the agents that a host lists, fetched on this connection; None without a connection."""
        listed = self.listed_agents()
        if node in listed:
            return AgentListing(listed[node])
        if not self.is_up:
            return None
        try:
            async with asyncio.timeout(_REFRESH_TIMEOUT_S):
                stored = await self.client.address(Coordinate(PROFILE, node, ""))
            agents = read_agents(stored.event.content)
        except TimeoutError:
            return None
        except PosthouseError as failure:
            if failure.code not in ("address_unknown", "profile_malformed"):
                log.info("profile_not_fetched", code=failure.code)
                return None
            agents = None
        self._fetched[node] = agents
        return AgentListing(agents)

    async def refresh(self) -> None:
        """Read the members and topics of the mesh from the relay."""
        client = self.client
        self._roster.set_members(await client.meshes.members(self._settings.mesh))
        self._roster.set_topics(await client.meshes.topics(self._settings.mesh))

    async def resolve(self, to: str) -> str:
        """Return the node id or #topic that a string names; refresh the roster once if the string is unknown.

        Only the relay knows that a topic does not exist. While it is unreachable, the topic is assumed to exist: the
        post waits in the outbox, and the relay may refuse it later.
        """
        mesh = self._settings.mesh
        try:
            return self._roster.resolve(to, mesh)
        except PosthouseError as unknown:
            is_topic = unknown.code == "topic_unknown"
            if unknown.code not in _MAYBE_OUTDATED or not (self.is_up or is_topic):
                raise
        has_asked = self.is_up and await self._try_refresh(_REFRESH_TIMEOUT_S if is_topic else None)
        return to if is_topic and not has_asked else self._roster.resolve(to, mesh)

    async def refresh_for_reader(self) -> None:
        """Refresh the roster for a request that shows it, unless it is fresh; do not wait for a slow relay."""
        if self.is_up:
            await self._refresh_throttled(_REFRESH_TIMEOUT_S)

    async def run(self) -> None:
        """Stay connected; ends only by raising a failure that must end the daemon."""
        while True:
            client = self._client = self.make_client()
            client.observe(self._on_connected, self._on_lost)
            client.meshes.on_rotated = self.on_rotated
            try:
                await client.connect(is_patient=True)
                await self._serve(client)
            except PosthouseError as failure:
                if _is_final(failure):
                    raise
                self._failure = failure
                log.error("uplink_failed", code=failure.code, reason=str(failure))
            finally:
                self._stop_sending()
                self.is_admitted = False
                self._client = self.mailbox = None
                await asyncio.shield(client.close())  # a cancelled close would leave connections open
            await asyncio.sleep(_AGAIN_S)

    async def _serve(self, client: Client) -> None:
        refreshing = asyncio.create_task(self._refresh_loop())
        refreshing.add_done_callback(self.on_task_end)
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
        """Open the mailbox; return None if the relay does not admit this node now."""
        try:
            mailbox = await client.receive(
                self._settings.mesh,
                window=RECEIVE_WINDOW_MAX,
                instance=self._instance,
                on_confirmed=lambda items: self.on_confirmed(items),
                on_receipts=lambda receipts: self.on_receipts(receipts),
                on_presence=self._on_presence,
                fills_gaps=True,
                takes_late_requests=True,
            )
        except Refused as failure:
            if _is_final(failure):
                raise
            self.is_admitted, self.refusal = False, failure
            self._stop_sending()
            log.warning("mailbox_refused", code=failure.code, reason=str(failure))
            return None
        self.mailbox = mailbox
        self._roster.add_online(mailbox.roster)
        self.is_admitted, self.refusal = True, None
        self._start_sending()
        return mailbox

    async def _read(self, mailbox: Mailbox) -> None:
        try:
            await self._receive(mailbox)
        except Transient as failure:  # the inbox cannot be written; the relay keeps the messages
            log.error("inbox_not_writable", code=failure.code, reason=str(failure))
        finally:
            self.mailbox = None
            self._own_posts.expect(is_expecting=False)
            await mailbox.close()

    async def _receive(self, mailbox: Mailbox) -> None:
        """Store messages and confirm them until the mailbox is closed; raises failures of the store and the mailbox."""
        while deliveries := await mailbox.take():
            self._own_posts.expect(is_expecting=True)
            if any(self._roster.name_of(delivery.sender) is None for delivery in deliveries):  # it may have just joined
                await self._refresh_throttled()
            accepted: list[tuple[Delivery, NewItem]] = []
            for delivery in deliveries:
                try:
                    agents = await self._mailroom.recipients(delivery.message, delivery.id)
                except PosthouseError as refusal:
                    log.info("mail_refused", message_id=delivery.id, code=refusal.code)
                    self._reject(mailbox, delivery, rejection_reason(refusal))
                else:
                    item = delivered_item(delivery, self._inbox.minter.mint(), self._roster.name_of(delivery.sender))
                    accepted.append((delivery, item._replace(agents=agents)))
            await self._own_posts.put_with([(delivery.seq, item) for delivery, item in accepted])
            mailbox.confirm(*(delivery for delivery, item in accepted if item.undecryptable is None))
            for delivery, item in accepted:
                if item.undecryptable is not None:
                    self._reject(mailbox, delivery, UNDECRYPTABLE)

    def _reject(self, mailbox: Mailbox, delivery: Delivery, reason: str) -> None:
        """Reject a message, and send a receipt to the sender of a direct one: the relay does not report rejections."""
        mailbox.reject(delivery, reason)
        message = delivery.message
        if message.recipient is not None and self._client is not None and self.supports(RECEIPTS_FEATURE):
            self._client.receipts.add(
                delivery.id,
                delivery.sender,
                mesh=message.mesh,
                at_ms=self._settings.clock.wall_ns() // MILLISECOND_NS,
                agent=message.to_agent,
                state=ReceiptState.REJECTED,
                reason=reason,
            )

    async def _wait_writable(self) -> None:
        while True:
            try:
                await self._inbox.probe()
                return
            except Transient as failure:
                log.debug("inbox_still_not_writable", code=failure.code)
                await asyncio.sleep(_PROBE_S)

    async def _refresh_loop(self) -> None:
        while True:
            await self._try_refresh()
            await asyncio.sleep(_REFRESH_EVERY_S)

    async def _refresh_throttled(self, timeout_s: float | None = None) -> None:
        """Refresh at most once a second: in an open mesh, senders that are not members stay unknown."""
        now_ns = self._settings.clock.boot_ns()
        if now_ns - self._refreshed_ns >= _REFRESH_MIN_NS:
            self._refreshed_ns = now_ns
            await self._try_refresh(timeout_s)

    async def _try_refresh(self, timeout_s: float | None = None) -> bool:
        """Refresh the roster; return False if the relay does not answer, or not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.refresh()
        except (PosthouseError, TimeoutError) as failure:
            log.info("roster_not_refreshed", reason=str(failure) or f"no answer within {timeout_s} s")
            return False
        return True

    def make_client(self) -> Client:
        """Return a client of this host that is not connected yet."""
        settings = self._settings
        return Client(
            settings.relay,
            self._key,
            mesh=settings.mesh,
            pins=self._pins,
            options=settings.client,
            clock=settings.clock,
            check_features=self._check_features,
        )

    def _check_features(self, features: Mapping[str, Any]) -> None:
        difference_s = None if self._client is None else self._client.clock_difference_s
        if difference_s is not None and abs(difference_s) * SECOND_NS > TOLERANCE_NS:
            self.clock_watch.refuse(difference_s)  # taken back if the login that follows succeeds
        offer = read_offer(features)
        hours = bounded_max_age_h(offer.retention_days, self._settings.outbox_max_age_h)
        self._roster.set_retention(Retained(offer.retention_days))
        self.on_offer(offer, hours)

    def _on_connected(self) -> None:
        self.connections += 1
        log.info("relay_connected", relay=self._settings.relay)
        if self._client is not None:
            self.clock_watch.confirm(self._client.clock_difference_s, self._client.signer.login)
        if self.mailbox is not None:
            self._admission = asyncio.create_task(self._wait_admitted(self.mailbox))
            self._admission.add_done_callback(self.on_task_end)
        elif self.is_admitted:
            self._start_sending()
        self.on_status("connected")

    async def _wait_admitted(self, mailbox: Mailbox) -> None:
        """Let the drain continue once the relay has admitted this node; until then it may refuse for missing rights."""
        try:
            await mailbox.wait_open()
        except PosthouseError:  # the task that reads the mailbox gets it too
            return
        if self.mailbox is mailbox and self.is_up:
            self._start_sending()

    def _on_lost(self, code: int | None, reason: str) -> None:
        log.info("relay_lost", relay=self._settings.relay, code=code, reason=reason)
        self._stop_sending()
        self._fetched.clear()
        self.on_status("disconnected")

    def _start_sending(self) -> None:
        self._sending.set()
        self.on_may_send()

    def _stop_sending(self) -> None:
        self._sending.clear()
        if self._admission is not None:
            self._admission.cancel()
            self._admission = None

    def _on_presence(self, presence: Presence) -> None:
        self._roster.add_online([presence.node])
        self.on_presence(presence)

    def _unreachable(self) -> PosthouseError:
        return error("relay_unreachable", relay=self._settings.relay, reason="there is no connection")
