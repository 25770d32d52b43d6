"""The client of a daemon on this machine: send, read, wait, listen, without a key or a connection of one's own.

    with DaemonClient() as daemon:
        daemon.send("bob", "the build is green")
        for item in daemon.wait(60):
            print(item.sender_name, item.body)
            daemon.seen([item.id])

    async with DaemonClient() as daemon:
        await daemon.send("bob", "the build is green")

A refusal of the daemon is raised as PosthouseError with its code and hint; so is a daemon that is not there
(daemon_unreachable). The plain client may be shared by threads; the async one belongs to its loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from posthouse.client.daemon import calls
from posthouse.client.daemon.async_client import AsyncDaemonClient
from posthouse.client.daemon.calls import InboxFilter, ProfileFields, SendOptions
from posthouse.client.daemon.following import EVERYTHING, Following
from posthouse.client.daemon.patience import SILENCE_S, Patience
from posthouse.client.daemon.place import daemon_place
from posthouse.client.daemon.values import (
    Accepted,
    DaemonEvent,
    DaemonVersion,
    Health,
    InboxItem,
    OutboxChain,
    OutboxRow,
    RequeuedRow,
)
from posthouse.client.daemon.wire import Wire
from posthouse.client.locks.values import LockGrant
from posthouse.model.errors import PosthouseError


class DaemonClient:
    """Speaks to the daemon of a mesh; `async with` gives the same as coroutines."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        mesh: str | None = None,
        tcp: bool = False,
        timeout_s: float = 30.0,
    ) -> None:
        """Make a client of the daemon in `directory`, or of the one for `mesh`; nothing is connected yet.

        `tcp` goes over 127.0.0.1 with the token from the directory instead of the socket.
        """
        self.place = daemon_place(directory, mesh, is_tcp=tcp)
        self._timeout_s = timeout_s
        self._wire = Wire(self.place, timeout_s)
        self._async: AsyncDaemonClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncDaemonClient:
        self._async = AsyncDaemonClient(self.place, self._timeout_s)
        return self._async

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._async is not None:
            await self._async.close()

    def close(self) -> None:
        """Close every connection."""
        self._wire.close()

    # Messages

    def send(self, to: str, message: str, **given: Unpack[SendOptions]) -> Accepted:
        """Send to a member (name, node id, hex prefix) or #topic; returns when the daemon has it on its disk."""
        return self._wire.ask(calls.send(to, message, given))

    def message(self, message_id: str) -> dict[str, Any]:
        """Return the outbox row of a message and how far it has come to each recipient."""
        return self._wire.ask(calls.message(message_id))

    def history(
        self,
        *,
        topic: str | None = None,
        member: str | None = None,
        before: str | int | None = None,
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Return the messages of a topic, or those exchanged with a member, newest first."""
        return self._wire.ask(calls.history(topic, member, before, limit))

    # Inbox

    def inbox(self, **given: Unpack[InboxFilter]) -> list[InboxItem]:
        """Return mail, newest first."""
        return self._wire.ask(calls.inbox(given))

    def wait(self, timeout_s: float = 60.0, **given: Unpack[InboxFilter]) -> list[InboxItem]:
        """Return mail as soon as there is some that fits, unread unless said otherwise; [] when the time is over.

        A daemon that is restarted meanwhile is waited for.
        """
        patience = Patience(timeout_s)
        wanted: InboxFilter = {"unread": True, **given}
        while True:
            try:
                found = self._wire.ask(calls.inbox(wanted, patience.slice_s()))
            except PosthouseError as failure:
                time.sleep(patience.pause_s(failure))
                continue
            if found or patience.left_s <= 0:
                return found

    def item(self, row_id: str) -> InboxItem:
        """Return one message of the inbox."""
        return self._wire.ask(calls.item(row_id))

    def seen(self, ids: Sequence[str]) -> int:
        """Mark mail as read; return how many were not before."""
        return self._wire.ask(calls.seen(ids))

    # Outbox

    def outbox(self, *, status: str | None = None, limit: int | None = None) -> list[OutboxRow]:
        """Return what was sent from here and where it is."""
        return self._wire.ask(calls.outbox(status, limit))

    def requeue(
        self, row_id: str, *, new_client_message_id: str | None = None, message: str | None = None
    ) -> RequeuedRow:
        """Send a dead or pending row anew under a fresh id, with the same or another message."""
        return self._wire.ask(calls.requeue(row_id, new_client_message_id, message))

    def outbox_row(self, row_id: str) -> OutboxChain:
        """Return one row, by its id, client_message_id or message id, with the rows it was requeued from and to."""
        return self._wire.ask(calls.outbox_row(row_id))

    def drop(self, row_id: str) -> RequeuedRow:
        """Give a dead or pending row up, without a successor."""
        return self._wire.ask(calls.drop(row_id))

    # Topics

    def topics(self) -> dict[str, Any]:
        """Return the topics of the mesh and the subscriptions of this node."""
        return self._wire.ask(calls.topics())

    def create_topic(self, topic: str) -> dict[str, Any]:
        """Make a topic."""
        return self._wire.ask(calls.topic_change("create", topic))

    def post(self, topic: str, message: str, **given: Unpack[SendOptions]) -> Accepted:
        """Send to a topic; returns when the daemon has it on its disk."""
        return self._wire.ask(calls.post(topic, message, given))

    def subscribe(self, pattern: str) -> dict[str, Any]:
        """Get what is posted to topics that match."""
        return self._wire.ask(calls.topic_change("subscribe", pattern))

    def unsubscribe(self, pattern: str) -> dict[str, Any]:
        """End a subscription."""
        return self._wire.ask(calls.topic_change("unsubscribe", pattern))

    # Locks

    def lock_acquire(
        self,
        resource: str,
        *,
        lease_ms: int = 30_000,
        wait_ms: int | None = None,
        request_id: str | None = None,
        mesh: str | None = None,
    ) -> LockGrant:
        """Take a lock for this node; send its token with every protected write."""
        return self._wire.ask(calls.lock_acquire(resource, lease_ms, wait_ms, request_id, mesh))

    def lock_renew(self, resource: str, token: int, *, lease_ms: int = 30_000, mesh: str | None = None) -> LockGrant:
        """Renew a lease that is active."""
        return self._wire.ask(calls.lock_renew(resource, token, lease_ms, mesh))

    def lock_release(self, resource: str, token: int, *, mesh: str | None = None) -> None:
        """Give a lock back."""
        self._wire.ask(calls.lock_release(resource, token, mesh))

    # The mesh and the daemon

    def peers(self) -> dict[str, Any]:
        """Return the members of the mesh and who is online."""
        return self._wire.ask(calls.peers())

    def profile(self, **given: Unpack[ProfileFields]) -> dict[str, Any]:
        """Change what others see of this node."""
        return self._wire.ask(calls.profile(given))

    def health(self) -> Health:
        """Return how the daemon is."""
        return self._wire.ask(calls.health())

    def version(self) -> DaemonVersion:
        """Return what the daemon is."""
        return self._wire.ask(calls.version())

    def metrics(self) -> str:
        """Return the metrics as Prometheus reads them."""
        return self._wire.text("/v1/metrics")

    def events(self, last_event_id: str | None = None) -> Iterator[DaemonEvent]:
        """Yield what happens, for ever; after a break it goes on behind the last message, without a gap.

        `last_event_id` begins behind a message instead of now. A daemon that is not there at first is an error; one
        that goes away later is waited for.
        """
        following = Following(last_event_id)
        if last_event_id is None:
            following.begin(self.inbox(limit=1))
        while True:
            try:
                with self._wire.stream(following.headers(), SILENCE_S) as stream:
                    following.opened()
                    if following.last is None:
                        for item in reversed(self.inbox(limit=EVERYTHING)):
                            yield following.note_stored(item)
                    for event in stream:
                        if following.is_new(event):
                            yield following.note(event)
            except PosthouseError as failure:
                following.judge(failure)
            time.sleep(following.pause_s())
