"""The client of a relay: send, receive, publish, read, subscribe, lock and administer meshes as one node.

    async with Client("http://127.0.0.1:7420", key) as client:
        await client.send("bob", "hello")
        async with await client.receive() as mailbox:
            async for delivery in mailbox:
                print(delivery.sender, delivery.body)
                mailbox.confirm(delivery)

Reads and administration go over HTTP, everything else over one stream that is opened at first use and kept up. The
first connection must succeed; after that the client reconnects by itself, and everything sent, received or subscribed
continues. A client belongs to the event loop it is used on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from posthouse.client.failures import Backoff
from posthouse.client.key_chains import Keys
from posthouse.client.locks.held_lock import Lock
from posthouse.client.locks.lock_calls import LockCalls, LockCommands, LockMode
from posthouse.client.meshes import Meshes
from posthouse.client.messages.confirmations import Confirmations, Confirmed, Presence
from posthouse.client.messages.gaps import GapFiller
from posthouse.client.messages.queues import Queues
from posthouse.client.messages.receipts import Receipt, Receipts
from posthouse.client.messages.receiver import Mailbox, Receiver
from posthouse.client.messages.requester import OnPartial, Requester
from posthouse.client.messages.sender import TOPIC_MARK, Composer, MessageOptions, Request, Sender, Sent, sent_from
from posthouse.client.relay_url import Invite, RelayUrl, parse_relay_url
from posthouse.client.stored_events import Archive, Copies, Page, Stored, StoredEvents, plan_deletions
from posthouse.client.stream.connection import CheckFeatures, Connection, Link, dial
from posthouse.client.stream.pending import PendingCommands
from posthouse.client.stream.publisher import Published, Publisher
from posthouse.client.stream.subscription import Subscription, Subscriptions
from posthouse.client.transport import ClientOptions, Requests, Transport
from posthouse.client.trust.pins import Pins, relay_key_changed
from posthouse.client.trust.signing import Draft, Signer, open_content, seal_content, with_mesh
from posthouse.client.webhooks import Webhooks
from posthouse.keys import NodeKey
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import DELETION, Coordinate, Event, parse_coordinate
from posthouse.model.freshness import with_freshness
from posthouse.model.lease import validate_lease_ms
from posthouse.model.limits import RECEIVE_WINDOW
from posthouse.model.lock_scope import validate_resources
from posthouse.model.message_api import Answer, MessageStates
from posthouse.model.node import DEFAULT_MESH, is_node_id
from posthouse.model.request import is_late_request, new_request
from posthouse.model.ulid import UlidGenerator

Tags = Iterable[Sequence[str]]


class Client:
    """One node's connection to one relay; see the module for an example."""

    def __init__(
        self,
        relay: str | RelayUrl,
        key: NodeKey,
        *,
        mesh: str = DEFAULT_MESH,
        relay_node: str | None = None,
        pins: Pins | None = None,
        options: ClientOptions | None = None,
        clock: Clock | None = None,
        check_features: CheckFeatures | None = None,
    ) -> None:
        """Make a client; it connects at first use.

        `mesh` is the mesh of calls that name none. `relay_node` is the node id that the relay must have, if it is
        known; otherwise the first key seen at this address is pinned in `pins`, by default the user's own.
        `check_features` gets the relay's features before this node signs anything, and may raise to refuse them.
        """
        self.options = options or ClientOptions()
        url = parse_relay_url(relay, allow_plain=self.options.allow_plain) if isinstance(relay, str) else relay
        self.url, self.key, self.mesh = url, key, mesh
        #: node id of the relay; None before the first contact
        self.relay: str | None = None
        self._expected_relay, self._check_features = relay_node, check_features
        self._pins = pins or Pins.of_home()
        self._clock = clock or system_clock()
        self.signer = Signer(key, self._clock)
        self._transport = Transport(url, self.options, self._clock, self._pins.certificate(url.origin))
        self._requests = Requests(self._transport, self.signer, self._check_relay)
        self.keys = Keys(self._requests, self.signer, self._clock.wall_ns)
        self._events = StoredEvents(self._requests, self.keys, is_verifying=self.options.is_verifying)
        self.meshes = Meshes(self._requests, self.signer, self._pins, self.keys, lambda: self.relay)
        backoff = Backoff(max_s=self.options.reconnect_most_s)
        self._link = Link(self._dial, backoff, url.origin, is_verifying=self.options.is_verifying)
        # participants resume in this order: confirmations must reach the relay before RECEIVE
        commands = PendingCommands(self._link)
        self._publisher = Publisher(commands, key, self.options)
        #: sends receipts to senders whose direct messages were read
        self.receipts = Receipts(commands, self.signer)
        self._receiver = Receiver(self._link, key, Confirmations(commands, self.signer), self.receipts)
        self._receiver.tracer = self.options.tracer
        GapFiller(self._link, self._receiver, self._events, self.meshes, key)
        self._subscriptions = Subscriptions(self._link, self.options)
        #: the state of messages, and the operator's view of queues
        self.queues = Queues(self._requests)
        self.webhooks = Webhooks(self._requests)
        self.copies = Copies(self._requests)
        #: reading and pruning for an archive; for administrators
        self.archive = Archive(self._requests)
        self._instance = secrets.token_hex(8)
        #: single operations on locks; `lock` holds one around a piece of work
        self.locks = LockCalls(LockCommands(commands), self._clock, self.options.publish_timeout_s, mesh, self.connect)
        self._minter = UlidGenerator(self._clock)
        self._is_connected = False  # once True, the link reconnects, or answers with the error that ended it
        self._sender = Sender(Composer(self.signer, self._minter), self.options.tracer)
        self._requester = Requester(self._requests, self.signer, self._clock, self._receiver.awaited)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self, *, is_patient: bool = False) -> None:
        """Open the stream; other calls do it at first use.

        Raises if the first attempt fails; with `is_patient` it keeps trying as long as another attempt may succeed.
        """
        await self._link.start(is_patient=is_patient)
        self._is_connected = True

    def observe(self, on_up: Callable[[], None], on_lost: Callable[[int | None, str], None]) -> None:
        """Call `on_up` after each connection is made, and `on_lost` (close code, reason) after each one is lost.

        Register before `connect`.
        """
        self._link.join(on_up=on_up, on_lost=on_lost)

    @property
    def is_up(self) -> bool:
        """True while there is a connection."""
        return self._link.is_up

    def supports(self, feature: str) -> bool:
        """Return True if the relay of the current connection announced a feature in its HELLO."""
        return self._link.supports(feature)

    @property
    def connect_error(self) -> PosthouseError | None:
        """Why the last attempt to connect failed; None while there is a connection."""
        return self._link.last_error

    @property
    def clock_difference_s(self) -> int | None:
        """How far this clock is ahead of the relay's, in whole seconds; None before the relay has reported its time."""
        return self._transport.clock_difference_s

    async def close(self) -> None:
        """Close every connection; subscriptions and mailboxes end, open calls raise client_closed.

        Confirmations and receipts get a few seconds to be answered first.
        """
        await self._receiver.settle()
        await self._link.close()
        await self._transport.close()

    # Writing

    def sign(self, content: str = "", *, kind: int, tags: Tags = (), mesh: str | None = None) -> Event:
        """Return a signed event with the current time, without sending it."""
        return self.signer.sign(kind, content, with_mesh(tags, mesh or self.mesh))

    async def seal(
        self, content: str, readers: Sequence[str], *, kind: int, tags: Tags = (), mesh: str | None = None
    ) -> Event:
        """Return a signed event whose content only its readers (names or node ids) can open, without sending it."""
        where = mesh or self.mesh
        nodes = [await self.meshes.resolve(reader, where) for reader in readers]
        sealed, seal_tags = seal_content(self.key, nodes, content)
        return self.sign(sealed, kind=kind, tags=[*tags, *seal_tags], mesh=where)

    def open(self, event: Event) -> str:
        """Return the content of an event, opened with this node's key if it is sealed."""
        return open_content(self.key, event)

    async def publish(
        self, content: str = "", *, kind: int, tags: Tags = (), mesh: str | None = None, seal_for: Sequence[str] = ()
    ) -> Published:
        """Sign an event and send it; returns after the relay has stored it.

        `seal_for` lists readers (names or node ids); without it the content is in the clear. To retry after a failure,
        `sign` or `seal` first and `publish_event` the same event again; a second `publish` would make a second event.
        """
        if seal_for:
            return await self.publish_event(await self.seal(content, seal_for, kind=kind, tags=tags, mesh=mesh))
        return await self.publish_event(self.signer.draft(kind, content, with_mesh(tags, mesh or self.mesh)))

    async def publish_event(self, event: Event | Draft) -> Published:
        """Send a signed event, retried over reconnects and transient refusals; raises the relay's refusal.

        If the relay already has the event, `duplicate` of the result is True.
        """
        if not self._is_connected:
            await self.connect()
        return await self._publisher.publish(event)

    async def publish_many(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send signed events in order, retried as in `publish_event`; return an answer or a refusal for each."""
        await self.connect()
        return await self._publisher.publish_many(events)

    async def submit(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send signed events in one frame, without retries; return an answer or an error for each.

        For callers that keep an outbox and decide themselves when to send an event again.
        """
        await self.connect()
        return await self._publisher.submit(events)

    async def delete(
        self, ids: Sequence[str], *, coordinates: Sequence[str] = (), reason: str = "", mesh: str | None = None
    ) -> list[Published]:
        """Delete own events, by id and by coordinate (all versions so far); return the answers to the deletions."""
        await self.connect()
        plan = await plan_deletions(self.supports, self._events, ids, coordinates)
        return [await self.publish(reason, kind=DELETION, tags=tags, mesh=mesh) for tags in plan]

    # Messages

    async def send(self, to: str, body: str, *, mesh: str | None = None, **given: Unpack[MessageOptions]) -> Sent:
        """Send a message to a member (name or node id) or to a topic (`#name`); returns after the relay has stored it.

        A direct message is sealed for its reader. A second call with the same client_message_id and the same request
        sends the same event, so the message is delivered once. The client retries after reconnects and transient
        refusals, except queue_full, which it raises at once. MessageOptions lists the other arguments.
        """
        with self._sender.traced("send", given):
            request = await self._request(to, body, mesh or self.mesh, given)
            return await self.send_event(self._sender.event_for(request))

    async def request(
        self,
        to: str,
        body: str,
        timeout_s: float = 60.0,
        *,
        queue: bool = False,
        on_partial: OnPartial | None = None,
        mesh: str | None = None,
        **given: Unpack[MessageOptions],
    ) -> Answer:
        """Send a request and return its final answer; needs no open mailbox.

        Raises no_responder at once if no responder is connected, unless `queue` lets the request wait for one;
        responder_busy or request_failed with the responder's reason; request_timeout after `timeout_s`. `on_partial`
        is called with each partial answer. A responder that connects after the deadline does not get the request.
        """
        mark = new_request(self._clock.wall_ns(), timeout_s, queue=queue)
        given["meta"] = with_freshness(given.get("meta"), mark.to_meta())
        with self._sender.traced("request", given):
            event = self._sender.composer.seal_and_sign(await self._request(to, body, mesh or self.mesh, given))
            return await self._requester.request(event, mark, to, on_partial)

    async def compose(self, to: str, body: str, *, mesh: str | None = None, **given: Unpack[MessageOptions]) -> Event:
        """Return a message, sealed and signed, without sending it; keep it to send the same bytes again later."""
        return self._sender.composer.seal_and_sign(await self._request(to, body, mesh or self.mesh, given))

    async def send_event(self, event: Event) -> Sent:
        """Send a message from `compose`; returns after the relay has stored it."""
        return sent_from(await self.publish_event(event), self._link.origin)

    async def receive(
        self,
        mesh: str | None = None,
        *,
        window: int = RECEIVE_WINDOW,
        instance: str | None = None,
        on_confirmed: Callable[[Sequence[Confirmed]], None] | None = None,
        on_presence: Callable[[Presence], None] | None = None,
        on_receipts: Callable[[Sequence[Receipt]], None] | None = None,
        fills_gaps: bool = False,
        takes_late_requests: bool = False,
    ) -> Mailbox:
        """Open the mailbox of this node in a mesh: an async iterator over its messages, in order.

        The relay sends at most `window` unconfirmed messages. `instance` identifies this reader over its reconnects.
        `on_confirmed` is called when readers confirm messages of this node; without it `Mailbox.confirmed` yields them.
        `on_presence` is called when a member or one of its agents comes online or goes offline, and when its profile
        changes; `Mailbox.roster` has the whole state. `on_receipts` is called when agents of other hosts have read or
        rejected messages of this node. With `fills_gaps`, messages of topics that this node's queue had no room for are
        included, from the history and perhaps a second time. A request whose deadline has passed is confirmed and not
        yielded, unless the mailbox `takes_late_requests`.
        """
        await self.connect()
        where, name = mesh or self.mesh, instance or self._instance
        mailbox = Mailbox(self._receiver, where, window, name, on_confirmed, on_presence, on_receipts, fills_gaps)
        if not takes_late_requests:
            self._receiver.is_late = lambda message: is_late_request(message, self._clock.wall_ns())
        self._receiver.open(mailbox)
        try:
            await mailbox.wait_open()
        except asyncio.CancelledError:
            self._receiver.forget(mailbox, is_leaving=True)
            raise
        return mailbox

    async def message(self, message_id: str) -> MessageStates:
        """Return the state of a message per recipient."""
        return await self.queues.message(message_id)

    # Locking

    def lock(
        self,
        resource: str,
        *,
        lease_s: float = 30.0,
        wait_s: float | None = None,
        mesh: str | None = None,
        session: str | None = None,
        mode: LockMode = "exclusive",
        tree: bool = False,
        also: Sequence[str] = (),
    ) -> Lock:
        """Return a lock to hold around a piece of work: `async with client.lock("db/main", lease_s=30) as held`.

        Entering waits until the lock is granted, at most `wait_s` if given. The lease is renewed while the body runs;
        if it is lost, the body is cancelled and lock_lost is raised. Send `held.token` with every protected write. A
        `tree` also locks all names below; `also` names locks to hold at the same time, all or none.
        """
        lease_ms = validate_lease_ms(round(lease_s * 1000))
        where = mesh or self.mesh
        validate_resources((resource, *also), is_tree=tree)
        options = (self.locks, self._clock, self._minter, resource, where, lease_ms, wait_s)
        return Lock(*options, session=session, mode=mode, tree=tree, also=also)

    # Reading

    async def query(
        self,
        wanted: Mapping[str, Any] | None = None,
        *,
        limit: int | None = None,
        order: Literal["asc", "desc"] = "asc",
        cursor: str | None = None,
    ) -> Page:
        """Return a page of the stored events that match a filter; without one, of all that this node may read.

        `order` is by commit; pass the page's cursor for the next page.
        """
        return await self._events.query(wanted or {}, limit=limit, order=order, cursor=cursor)

    async def count(self, wanted: Mapping[str, Any] | None = None) -> int:
        """Return how many stored events match a filter."""
        return await self._events.count(wanted or {})

    async def get(self, event_id: str) -> Stored:
        """Return the stored event with an id."""
        return await self._events.get(event_id)

    async def address(self, coordinate: str | Coordinate) -> Stored:
        """Return the latest event at a coordinate (`kind:pubkey:d`)."""
        return await self._events.address(_coordinate(coordinate))

    async def history(
        self, coordinate: str | Coordinate, *, limit: int | None = None, cursor: str | None = None
    ) -> Page:
        """Return a page of the events at a coordinate, replaced ones included."""
        return await self._events.history(_coordinate(coordinate), limit=limit, cursor=cursor)

    async def pointer(self, resource: str, *, mesh: str | None = None) -> Stored:
        """Return the newest event that was written under the fence of a resource, over all authors."""
        return await self._events.pointer(resource, mesh or self.mesh)

    async def subscribe(
        self, *filters: Mapping[str, Any], cursor: str | None = None, limit: int | None = None
    ) -> Subscription:
        """Return an async iterator over the stored events that match one of the filters, then over live ones.

        It starts after `cursor`, or with the newest `limit` stored events, or with the oldest.
        """
        await self.connect()
        return self._subscriptions.add(filters, cursor, limit)

    # About the relay

    async def info(self) -> dict[str, Any]:
        """Return the relay's description of itself and its limits; needs no authentication."""
        return await self._requests.send_anonymous(dict[str, Any], "GET", "/v1/info")

    async def token(self) -> str:
        """Return a token of this node, for programs that use the HTTP API of the relay themselves."""
        return await self._requests.token()

    async def identify(self) -> str:
        """Return the relay's node id after checking it against the expected and the pinned one."""
        found = (await self.info()).get("relay")
        if not isinstance(found, str):
            raise error("answer_invalid", relay=self.url.origin, reason="it does not give its node id")
        self._check_relay(found)
        return found

    async def join(self, invite: Invite, name: str) -> dict[str, Any]:
        """Join the mesh of an invite under a name; only the relay that issued the invite gets its code."""
        await self.identify()
        if self.relay != invite.relay:
            raise relay_key_changed(self.url.origin, invite.relay, str(self.relay))
        return await self.meshes.redeem(invite, name)

    def statistics(self) -> dict[str, Any]:
        """Return the state of the stream: is_up, connections, subscriptions, unanswered."""
        return {
            "is_up": self._link.is_up,
            "connections": self._link.connections,
            "subscriptions": len(self._subscriptions),
            "unanswered": self._publisher.unanswered,
        }

    async def _request(self, to: str, body: str, mesh: str, given: MessageOptions) -> Request:
        destination = to if to.startswith(TOPIC_MARK) or is_node_id(to) else await self.meshes.resolve(to, mesh)
        if mentions := given.get("mentions"):
            given["mentions"] = [await self.meshes.resolve(each, mesh) for each in mentions]
        return self._sender.composer.request(destination, body, mesh, given)

    async def _dial(self) -> Connection:
        for _ in self.url.others:  # a failure makes the transport use the next address
            with suppress(Transient):
                return await self._dial_once()
        return await self._dial_once()

    async def _dial_once(self) -> Connection:
        seconds = self.options.connect_timeout_s
        return await dial(self._transport, self.signer, self._check_relay, seconds, self._check_features)

    def _check_relay(self, found: str) -> None:
        if self._expected_relay is not None and found != self._expected_relay:
            raise relay_key_changed(self.url.origin, self._expected_relay, found)
        self._pins.check_relay(self.url.origin, found)
        self.relay = found


def _coordinate(given: str | Coordinate) -> Coordinate:
    return given if isinstance(given, Coordinate) else parse_coordinate(given)
