"""The async client of a daemon: every call of DaemonClient as a coroutine, over aiohttp on the running loop.

Connections are kept. A repeatable call is sent once more when the connection it used was closed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Unpack

import aiohttp
from yarl import URL

from posthouse.client.daemon import calls
from posthouse.client.daemon.calls import Call, InboxFilter, ProfileFields, SendOptions, refusal
from posthouse.client.daemon.event_stream import INBOX_PAGE_MAX, SILENCE_S, EventFollower, EventReader, LongPoll
from posthouse.client.daemon.local_api import (
    Accepted,
    DaemonEvent,
    DaemonVersion,
    Health,
    InboxItem,
    OutboxChain,
    OutboxRow,
    RequeuedRow,
)
from posthouse.client.daemon.locate import DaemonPlace, SocketAddress, unreachable
from posthouse.model.api import LockGrant
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MIB


class AsyncDaemonClient:
    """What `async with DaemonClient()` gives."""

    def __init__(self, place: DaemonPlace, timeout_s: float = 30.0) -> None:
        self.place = place
        self._session = AsyncTransport(place, timeout_s)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    # Messages

    async def send(self, to: str, message: str, **given: Unpack[SendOptions]) -> Accepted:
        """Send to a member (name, node id, hex prefix) or #topic; returns when the daemon has it on its disk."""
        return await self._session.ask(calls.send(to, message, given))

    async def message(self, message_id: str) -> dict[str, Any]:
        """Return the outbox row of a message and how far it has come to each recipient."""
        return await self._session.ask(calls.message(message_id))

    async def history(
        self,
        *,
        topic: str | None = None,
        member: str | None = None,
        before: str | int | None = None,
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Return the messages of a topic, or those exchanged with a member, newest first."""
        return await self._session.ask(calls.history(topic, member, before, limit))

    # Inbox

    async def inbox(self, **given: Unpack[InboxFilter]) -> list[InboxItem]:
        """Return mail, newest first."""
        return await self._session.ask(calls.inbox(given))

    async def wait(self, timeout_s: float = 60.0, **given: Unpack[InboxFilter]) -> list[InboxItem]:
        """Return mail as soon as there is some that fits, unread unless said otherwise; [] when the time is over.

        A daemon that is restarted meanwhile is waited for.
        """
        patience = LongPoll(timeout_s)
        wanted: InboxFilter = {"unread": True, **given}
        while True:
            try:
                found = await self._session.ask(calls.inbox(wanted, patience.slice_s()))
            except PosthouseError as failure:
                await asyncio.sleep(patience.pause_s(failure))
                continue
            if found or patience.left_s <= 0:
                return found

    async def item(self, row_id: str) -> InboxItem:
        """Return one message of the inbox."""
        return await self._session.ask(calls.item(row_id))

    async def seen(self, ids: Sequence[str]) -> int:
        """Mark mail as read; return how many were not before."""
        return await self._session.ask(calls.seen(ids))

    # Outbox

    async def outbox(self, *, status: str | None = None, limit: int | None = None) -> list[OutboxRow]:
        """Return what was sent from here and where it is."""
        return await self._session.ask(calls.outbox(status, limit))

    async def requeue(
        self, row_id: str, *, new_client_message_id: str | None = None, message: str | None = None
    ) -> RequeuedRow:
        """Send a dead or pending row anew under a fresh id, with the same or another message."""
        return await self._session.ask(calls.requeue(row_id, new_client_message_id, message))

    async def outbox_row(self, row_id: str) -> OutboxChain:
        """Return one row, by its id, client_message_id or message id, with the rows it was requeued from and to."""
        return await self._session.ask(calls.outbox_row(row_id))

    async def drop(self, row_id: str) -> RequeuedRow:
        """Give a dead or pending row up, without a successor."""
        return await self._session.ask(calls.drop(row_id))

    # Topics

    async def topics(self) -> dict[str, Any]:
        """Return the topics of the mesh and the subscriptions of this node."""
        return await self._session.ask(calls.topics())

    async def create_topic(self, topic: str) -> dict[str, Any]:
        """Make a topic."""
        return await self._session.ask(calls.topic_change("create", topic))

    async def post(self, topic: str, message: str, **given: Unpack[SendOptions]) -> Accepted:
        """Send to a topic; returns when the daemon has it on its disk."""
        return await self._session.ask(calls.post(topic, message, given))

    async def subscribe(self, pattern: str) -> dict[str, Any]:
        """Get what is posted to topics that match."""
        return await self._session.ask(calls.topic_change("subscribe", pattern))

    async def unsubscribe(self, pattern: str) -> dict[str, Any]:
        """End a subscription."""
        return await self._session.ask(calls.topic_change("unsubscribe", pattern))

    # Locks

    async def lock_acquire(
        self,
        resource: str,
        *,
        lease_ms: int = 30_000,
        wait_ms: int | None = None,
        request_id: str | None = None,
        mesh: str | None = None,
    ) -> LockGrant:
        """Take a lock for this node; send its token with every protected write."""
        return await self._session.ask(calls.lock_acquire(resource, lease_ms, wait_ms, request_id, mesh))

    async def lock_renew(
        self, resource: str, token: int, *, lease_ms: int = 30_000, mesh: str | None = None
    ) -> LockGrant:
        """Renew a lease that is active."""
        return await self._session.ask(calls.lock_renew(resource, token, lease_ms, mesh))

    async def lock_release(self, resource: str, token: int, *, mesh: str | None = None) -> None:
        """Give a lock back."""
        await self._session.ask(calls.lock_release(resource, token, mesh))

    # The mesh and the daemon

    async def peers(self) -> dict[str, Any]:
        """Return the members of the mesh and who is online."""
        return await self._session.ask(calls.peers())

    async def profile(self, **given: Unpack[ProfileFields]) -> dict[str, Any]:
        """Change what others see of this node."""
        return await self._session.ask(calls.profile(given))

    async def health(self) -> Health:
        """Return how the daemon is."""
        return await self._session.ask(calls.health())

    async def version(self) -> DaemonVersion:
        """Return what the daemon is."""
        return await self._session.ask(calls.version())

    async def metrics(self) -> str:
        """Return the metrics as Prometheus reads them."""
        return await self._session.text("/v1/metrics")

    async def events(self, last_event_id: str | None = None) -> AsyncIterator[DaemonEvent]:
        """Yield what happens, for ever; after a break it goes on behind the last message, without a gap.

        `last_event_id` begins behind a message instead of now. A daemon that is not there at first is an error; one
        that goes away later is waited for.
        """
        following = EventFollower(last_event_id)
        if last_event_id is None:
            following.begin(await self.inbox(limit=1))
        while True:
            try:
                async with self._session.stream(following.headers(), SILENCE_S) as stream:
                    following.opened()
                    if following.last is None:
                        for item in reversed(await self.inbox(limit=INBOX_PAGE_MAX)):
                            yield following.note_stored(item)
                    async for event in stream:
                        if following.is_new(event):
                            yield following.note(event)
            except PosthouseError as failure:
                following.judge(failure)
            await asyncio.sleep(following.pause_s())


T = TypeVar("T")
LINE_MAX_BYTES = MIB  # a message and its frame
_BROKEN = (aiohttp.ClientError, OSError, TimeoutError)


class AsyncTransport:
    """Carries out calls."""

    def __init__(self, place: DaemonPlace, timeout_s: float) -> None:
        self.place = place
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._address: SocketAddress | None = None
        self._is_closed = False

    async def ask(self, call: Call[T]) -> T:
        """Return the answer of a call."""
        data = call.encode()
        for is_last in (False, True):
            try:
                status, answered = await self._exchange(call, data)
            except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError) as failure:
                if is_last or not call.is_repeatable:
                    raise unreachable(self.place, failure) from failure
            except _BROKEN as failure:
                raise unreachable(self.place, _cause(failure)) from failure
            else:
                return call.answer(status, answered, str(self.place))
        raise AssertionError("unreachable")

    async def _exchange(self, call: Call[T], data: bytes | None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if data is not None else {}
        timeout = aiohttp.ClientTimeout(total=self._timeout_s + call.wait_s)
        async with self._open().request(
            call.method,
            self._url(call.target),
            data=data,
            headers=self._headers({**headers, **call.headers}),
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            return response.status, await response.read()

    @asynccontextmanager
    async def stream(self, headers: Mapping[str, str], silence_s: float) -> AsyncIterator[AsyncIterator[DaemonEvent]]:
        """Open the stream of events; the daemon breaks its silence by comments."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=silence_s)
        try:
            async with self._open().get(
                self._url("/v1/events"), headers=self._headers(headers), timeout=timeout, read_bufsize=LINE_MAX_BYTES
            ) as response:
                if response.status != 200:
                    raise refusal(response.status, await response.read(), str(self.place))
                yield _events(response)
        except _BROKEN as failure:
            raise unreachable(self.place, _cause(failure)) from failure

    async def text(self, path: str) -> str:
        """Return an answer that is plain text."""
        try:
            async with self._open().get(self._url(path), headers=self._headers({})) as response:
                data = await response.read()
        except _BROKEN as failure:
            raise unreachable(self.place, _cause(failure)) from failure
        if response.status != 200:
            raise refusal(response.status, data, str(self.place))
        return data.decode()

    async def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
        if self._address is not None:
            self._address.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise error("client_closed", hint="Make a new DaemonClient.")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector(), timeout=aiohttp.ClientTimeout(total=self._timeout_s)
            )
        return self._session

    def _connector(self) -> aiohttp.BaseConnector:
        asyncio.get_running_loop()
        if self.place.is_tcp:
            return aiohttp.TCPConnector(limit=0)
        self._address = SocketAddress(self.place)
        return aiohttp.UnixConnector(self._address.path, limit=0)

    def _url(self, target: str) -> URL:
        port = f":{self.place.port()}" if self.place.is_tcp else ""
        host = "127.0.0.1" if self.place.is_tcp else "localhost"
        return URL(f"http://{host}{port}{target}", encoded=True)

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        return {**given, "Authorization": f"Bearer {self.place.token()}"} if self.place.is_tcp else dict(given)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[DaemonEvent]:
    reader = EventReader()
    while line := await response.content.readline():
        event = reader.take(line)
        if event is not None:
            yield event


def _cause(failure: BaseException) -> BaseException:
    return failure.os_error if isinstance(failure, aiohttp.ClientConnectorError) else failure
