"""The client of a daemon on this machine: send, read, wait, follow events, without a key or a relay connection.

    with DaemonClient() as daemon:
        daemon.send("bob", "the build is green")
        for item in daemon.wait(60):
            print(item.sender_name, item.body)
            daemon.seen([item.id])

    async with DaemonClient() as daemon:
        await daemon.send("bob", "the build is green")

A refusal is raised as PosthouseError with its code and hint; daemon_unreachable means that no daemon runs. The
blocking client may be shared by threads; the async one belongs to its loop.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from posthouse.client.daemon import calls
from posthouse.client.daemon import local_api as api
from posthouse.client.daemon.blocking_transport import BlockingTransport
from posthouse.client.daemon.calls import (
    AgentFields,
    InboxFilter,
    MailConditions,
    OutboxQuery,
    ProfileFields,
    SendOptions,
)
from posthouse.client.daemon.event_stream import (
    INBOX_PAGE_MAX,
    SILENCE_S,
    EventFollower,
    LongPoll,
    consuming_filter,
    waiting_filter,
)
from posthouse.client.daemon.locate import acting_agent, daemon_address
from posthouse.client.daemon.request_calls import AnswerPoll, OnPartial
from posthouse.model.errors import PosthouseError
from posthouse.model.lock_api import LockGrant
from posthouse.model.message_api import Answer

if TYPE_CHECKING:
    from posthouse.client.daemon.async_daemon_client import AsyncDaemonClient


class DaemonClient:
    """A blocking client of the daemon of a mesh; `async with` returns an AsyncDaemonClient instead."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        mesh: str | None = None,
        tcp: bool = False,
        timeout_s: float = 30.0,
        agent: str | None = None,
    ) -> None:
        """Make a client of the daemon in `directory`, by default that of the home; it connects at first use.

        With `mesh`, every call means that mesh; without, sending means the default mesh and reading means all. Every
        call acts for `agent`: it sends as that agent and reads that agent's inbox. By default this is the agent in
        POSTHOUSE_AGENT; "" is the host itself with its default inbox. With `tcp` it connects to 127.0.0.1 with the
        token in the directory instead of to the Unix socket.
        """
        self.place = daemon_address(directory, mesh, is_tcp=tcp)
        self._timeout_s = timeout_s
        self.agent = acting_agent(agent)
        self._transport = BlockingTransport(self.place, timeout_s, self.agent)
        self._async: AsyncDaemonClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncDaemonClient:
        from posthouse.client.daemon.async_daemon_client import AsyncDaemonClient  # loads asyncio and aiohttp

        self._async = AsyncDaemonClient(self.place, self._timeout_s, self.agent)
        return self._async

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._async is not None:
            await self._async.close()

    def close(self) -> None:
        """Close every connection."""
        self._transport.close()

    # Messages

    def send(self, to: str, message: str, **given: Unpack[SendOptions]) -> api.Accepted:
        """Send a message to a member (name, node id or hex prefix) or #topic.

        Returns after the daemon has stored it on disk; the daemon then delivers it to the relay. SendOptions lists the
        other arguments.
        """
        return self._transport.execute(calls.send(to, message, given))

    def request(
        self,
        to: str,
        message: str,
        timeout_s: float = 60.0,
        *,
        queue: bool = False,
        on_partial: OnPartial | None = None,
        **given: Unpack[SendOptions],
    ) -> Answer:
        """Send a request and return its final answer.

        Raises no_responder at once if no responder is connected, unless `queue` lets the request wait for one;
        responder_busy or request_failed with the responder's reason; request_timeout after `timeout_s`. `on_partial`
        is called with each partial answer. A responder that connects after the deadline does not get the request.
        """
        poll = AnswerPoll(to, message, timeout_s, given, queue=queue, on_partial=on_partial)
        poll.start(self._transport.execute(poll.send))
        while True:
            try:
                answers = self._transport.execute(poll.next_call())
            except PosthouseError as failure:
                time.sleep(poll.pause_s(failure))
                continue
            if (answer := poll.take(answers)) is not None:
                return answer

    def message(self, message_id: str) -> dict[str, Any]:
        """Return the outbox row of a message and its state per recipient."""
        return self._transport.execute(calls.message(message_id))

    def history(
        self,
        *,
        topic: str | None = None,
        member: str | None = None,
        before: str | int | None = None,
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Return the messages of a topic, or those exchanged with a member, newest first."""
        return self._transport.execute(calls.history(topic, member, before, limit))

    def withdraw(self, message_id: str) -> dict[str, Any]:
        """Take back a message: readers that have not read it no longer see it; others get a notice."""
        return self._transport.execute(calls.withdraw(message_id))

    # Inbox

    def inbox(self, **given: Unpack[InboxFilter]) -> api.Page[api.InboxItem]:
        """Return a page of the inbox, unread mail oldest first; InboxFilter lists the arguments."""
        return self._transport.execute(calls.inbox(given))

    def wait(
        self, timeout_s: float = 60.0, *, peek: bool = False, **given: Unpack[InboxFilter]
    ) -> api.Page[api.InboxItem]:
        """Wait for unread mail that no wait of this agent has returned, and return it; [] after `timeout_s`.

        The daemon keeps the mark of `wait` over restarts; unread mail from before it is in `inbox(unread=True)`. With
        `peek` the mark stays until `advance` moves it. A named `reader` has its own mark and gets read mail too.
        """
        found = self._poll(timeout_s, waiting_filter(given))
        if not peek:
            self.advance(found)
        return found

    def advance(self, page: api.Page[api.InboxItem]) -> None:
        """Move the mark of the reader that requested a page past the page."""
        if page and page.mark is not None:
            self._transport.execute(calls.move_mark(page.mark, [item.id for item in page]))

    def consume(self, reader: str, **given: Unpack[MailConditions]) -> Iterator[api.InboxItem]:
        """Yield all mail, oldest first, then mail as it arrives, without end; read or not makes no difference.

        The daemon keeps a cursor under the name `reader`. It moves past a message when the next one is requested, so a
        program that ends before that gets the message again.
        """
        filter_ = consuming_filter(reader, given)
        while True:
            page = self._poll(math.inf, filter_)
            for item in page:
                yield item
                self._transport.execute(calls.move_mark(page.mark or reader, [item.id]))

    def _poll(self, timeout_s: float, filter_: InboxFilter) -> api.Page[api.InboxItem]:
        """Poll for mail until there is some or the timeout has passed, even across a restart of the daemon."""
        poll = LongPoll(timeout_s)
        while True:
            try:
                found = self._transport.execute(calls.inbox(filter_, poll.slice_s()))
            except PosthouseError as failure:
                time.sleep(poll.pause_s(failure))
                continue
            if found or poll.left_s <= 0:
                return found

    def item(self, row_id: str, *, confirm: bool = False) -> api.InboxItem:
        """Return one message of the inbox; raises message_stale after its `valid_until`, unless you `confirm`."""
        return self._transport.execute(calls.item(row_id, is_confirmed=confirm))

    def seen(self, ids: Sequence[str]) -> int:
        """Mark messages as read; return how many were unread."""
        return self._transport.execute(calls.seen(ids))

    def seen_all(self, **given: Unpack[MailConditions]) -> int:
        """Mark as read all messages that the conditions select, or all without a condition; return how many changed."""
        return self._transport.execute(calls.seen_all(given))

    def thread(self, message_id: str) -> api.Thread:
        """Return the thread of a message: everything of it that this host has, oldest first."""
        return self._transport.execute(calls.thread(message_id))

    def threads(self, before: str | None = None, limit: int | None = None) -> api.Page[api.ThreadSummary]:
        """Return a page of the threads of this host, the one with the newest message first."""
        return self._transport.execute(calls.threads(before, limit))

    def traffic(self, since: str | None = None) -> api.Traffic:
        """Return the numbers of messages that agents of this host exchanged since a time, by default an hour ago."""
        return self._transport.execute(calls.traffic(since))

    # Outbox

    def outbox(self, **given: Unpack[OutboxQuery]) -> api.Page[api.OutboxRow]:
        """Return a page of the messages sent through this daemon, newest first; OutboxQuery lists the arguments."""
        return self._transport.execute(calls.outbox(given))

    def requeue(
        self,
        row_id: str,
        *,
        new_client_message_id: str | None = None,
        message: str | None = None,
        via: str | None = None,
    ) -> api.RequeuedRow:
        """Replace a dead or pending row with a new one under a new id, with the same or another message.

        `via` names the program through which a person acts, for the journal; likewise in `drop` and `release`.
        """
        return self._transport.execute(calls.requeue(row_id, new_client_message_id, message, via))

    def outbox_row(self, row_id: str) -> api.OutboxChain:
        """Return one row, by its id, client_message_id or message id, with the rows it was requeued from and to."""
        return self._transport.execute(calls.outbox_row(row_id))

    def drop(self, row_id: str, *, via: str | None = None) -> api.RequeuedRow:
        """Abort a dead or pending row without a replacement."""
        return self._transport.execute(calls.drop(row_id, via))

    # Topics

    def topics(self) -> dict[str, Any]:
        """Return the topics of the mesh and the subscriptions of this node."""
        return self._transport.execute(calls.topics())

    def create_topic(self, topic: str) -> dict[str, Any]:
        """Create a topic."""
        return self._transport.execute(calls.topic_change("create", topic))

    def post(self, topic: str, message: str, **given: Unpack[SendOptions]) -> api.Accepted:
        """Send a message to a topic; returns after the daemon has stored it on disk."""
        return self._transport.execute(calls.post(topic, message, given))

    def subscribe(self, pattern: str) -> dict[str, Any]:
        """Subscribe this node to the topics that match a pattern."""
        return self._transport.execute(calls.topic_change("subscribe", pattern))

    def unsubscribe(self, pattern: str) -> dict[str, Any]:
        """End a subscription of this node."""
        return self._transport.execute(calls.topic_change("unsubscribe", pattern))

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
        """Acquire a lock for this node, waiting up to `wait_ms`; send its token with every protected write."""
        return self._transport.execute(calls.lock_acquire(resource, lease_ms, wait_ms, request_id, mesh))

    def lock_renew(self, resource: str, token: int, *, lease_ms: int = 30_000, mesh: str | None = None) -> LockGrant:
        """Renew an active lease; it counts from now."""
        return self._transport.execute(calls.lock_renew(resource, token, lease_ms, mesh))

    def lock_release(self, resource: str, token: int, *, mesh: str | None = None) -> None:
        """Release a lock."""
        self._transport.execute(calls.lock_release(resource, token, mesh))

    # Agents of this host

    def agents(self) -> list[api.Agent]:
        """Return the agents of this host, retired ones last."""
        return self._transport.execute(calls.agents())

    def register(self, name: str, *, pid: int | None = None, **given: Unpack[AgentFields]) -> api.Agent:
        """Add an agent or change its fields; AgentFields lists the arguments.

        With the pid of a program, the answer has the name that this program uses: if another running process has
        `name`, it is the next numbered one, such as claude-2.
        """
        return self._transport.execute(calls.register(name, pid, given))

    def rename_agent(self, name: str, to: str) -> api.Agent:
        """Give an agent of this host another name; its mail moves with it."""
        return self._transport.execute(calls.rename_agent(name, to))

    def retire_agent(self, name: str, reason: str | None = None) -> api.Agent:
        """Stop an agent of this host from receiving mail; senders get the reason."""
        return self._transport.execute(calls.retire_agent(name, reason))

    def pause_agents(self, *names: str, until: str, reason: str = "", program: str | None = None) -> list[api.Agent]:
        """Hold the mail of agents until a time (UTC, as text): nothing wakes them, and senders see the state.

        Without names it means every agent of `program`, and without that the agent that this client acts for.
        """
        return self._transport.execute(calls.pause_agents(names, program, until, reason))

    def resume_agents(self, *names: str, program: str | None = None) -> list[api.Agent]:
        """End the pauses of agents; return those that were paused."""
        return self._transport.execute(calls.resume_agents(names, program))

    def reserve(
        self,
        *paths: str,
        for_s: float = 1_800,
        note: str = "",
        mode: Literal["exclusive", "shared"] = "exclusive",
        is_repo: bool = False,
    ) -> list[api.Reservation]:
        """Reserve absolute paths, with everything below them, all or none; raises reservation_conflict.

        With `is_repo` the relay locks them too, for agents on other hosts.
        """
        return self._transport.execute(calls.reserve(paths, for_s, note, mode, is_repo=is_repo))

    def reservations(self, path: str | None = None) -> list[api.Reservation]:
        """Return the reservations of all agents; with a path, those that keep this agent from working on it."""
        return self._transport.execute(calls.reservations(path))

    def release(self, *paths: str, is_forced: bool = False, via: str | None = None) -> list[api.Reservation]:
        """Release paths that this agent has reserved, by default all; with `is_forced` also those of other agents."""
        return self._transport.execute(calls.release(paths, is_forced=is_forced, via=via))

    def set_on_mail(self, name: str, command: str | None) -> dict[str, Any]:
        """Set the command that the daemon runs when mail for an agent arrives; None removes it."""
        return self._transport.execute(calls.set_on_mail(name, command))

    def event_hooks(self) -> dict[str, Any]:
        """Return the hooks of the settings file, and the events whose commands keep failing."""
        return self._transport.execute(calls.event_hooks())

    def change_parked(self, hook: str, action: Literal["retry", "drop"]) -> dict[str, Any]:
        """Try the parked events of a hook again now, or give them up; return how many there are."""
        return self._transport.execute(calls.event_hooks(hook, action))

    # The mesh and the daemon

    def peers(self) -> dict[str, Any]:
        """Return the members of the mesh and their presence."""
        return self._transport.execute(calls.peers())

    def profile(self, **given: Unpack[ProfileFields]) -> dict[str, Any]:
        """Change the profile that other members see; ProfileFields lists the arguments."""
        return self._transport.execute(calls.profile(given))

    def health(self) -> api.Health:
        """Return the state of the daemon."""
        return self._transport.execute(calls.health())

    def meshes(self) -> list[api.MeshState]:
        """Return every mesh of the daemon with its state."""
        return self._transport.execute(calls.meshes())

    def add_mesh(self, mesh: str, relay: str | None = None) -> api.Health:
        """Make the daemon serve another mesh, or retry one that has failed."""
        return self._transport.execute(calls.add_mesh(mesh, relay))

    def remove_mesh(self, mesh: str) -> None:
        """Make the daemon stop serving a mesh; its files stay."""
        self._transport.execute(calls.remove_mesh(mesh))

    def rotate_key(self, mesh: str | None = None) -> dict[str, Any]:
        """Replace this host's key in a mesh with a new one; return both node ids."""
        return self._transport.execute(calls.rotate_key(mesh))

    def version(self) -> api.DaemonVersion:
        """Return the version and the features of the daemon."""
        return self._transport.execute(calls.version())

    def metrics(self) -> str:
        """Return the metrics in the Prometheus text format."""
        return self._transport.text("/v1/metrics")

    def events(self, last_event_id: str | None = None) -> Iterator[api.DaemonEvent]:
        """Yield events without end; after a lost connection it resumes after the last message, without a gap.

        It starts now, or after the message `last_event_id`. A daemon that does not run at the start is an error; if it
        stops later, the iterator waits for it.
        """
        follower = EventFollower(last_event_id)
        if last_event_id is None:
            follower.start_after(self.inbox(limit=1))
        while True:
            try:
                with self._transport.stream(follower.headers(), SILENCE_S) as stream:
                    follower.on_open()
                    if follower.last is None:
                        for item in reversed(self.inbox(limit=INBOX_PAGE_MAX)):
                            yield follower.note_stored(item)
                    for event in stream:
                        if follower.is_new(event):
                            yield follower.note(event)
            except PosthouseError as failure:
                follower.raise_unless_retryable(failure)
            time.sleep(follower.pause_s())
