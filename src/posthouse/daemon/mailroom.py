"""The mailroom of a host: which inboxes get a message, and mail between agents of the host.

A direct message goes to the agent that it names, or to the default inbox. An agent that is unknown, retired or has
too much unread mail refuses it, so that its sender learns the reason; mail never waits in an inbox that no program
reads. `LocalLane` carries direct mail between agents of one host from the outbox into the inbox without a relay;
delivering a message twice stores it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from posthouse.client import Delivery, Published
from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.agents.subscriptions import Subscriptions
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.inbox.inbox_items import NewItem
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.budget import encode_mesh_budget
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.message import Message, read_message
from posthouse.tracing import TRACEPARENT, valid_traceparent

log = structlog.get_logger(__name__)
UNREAD_MAX = 10_000  # direct messages that wait unread for one agent
_REASON_MAX_CHARS = 200


class Mailroom:
    """Assigns the mail of one host to the inboxes of its agents."""

    def __init__(self, inbox: Inbox, outbox: Outbox, agents: AgentRegistry, subscriptions: Subscriptions) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._agents = agents
        self._subscriptions = subscriptions

    async def recipients(self, message: Message, message_id: str) -> tuple[str, ...]:
        """Return the agents whose inboxes get a message; raises agent_unknown, agent_retired or agent_full.

        A message that is delivered again, because its confirmation was lost, is no longer refused: the inbox has it,
        and no other agent gets it.
        """
        try:
            return await self._recipients(message)
        except PosthouseError:
            if await self._inbox.known_messages([message_id]):
                return ()
            raise

    async def _recipients(self, message: Message) -> tuple[str, ...]:
        """Return the agents that a message is for.

        A message of a topic that no agent follows goes to the default inbox: it was in flight when the last follower
        stopped.
        """
        if message.recipient is None:
            return tuple(self._subscriptions.followers(message.destination_ref)) or (DEFAULT_INBOX,)
        if message.to_agent == DEFAULT_INBOX:
            return (DEFAULT_INBOX,)
        agent = self._agents.require_active(message.to_agent)
        if await self._inbox.unread_count(agent.name) >= UNREAD_MAX:
            raise error("agent_full", name=agent.name, limit=UNREAD_MAX)
        return (agent.name,)

    def other_followers(self, topic: str, author: str) -> tuple[str, ...]:
        """Return the agents that follow a topic, without the author of a post to it."""
        return tuple(agent for agent in self._subscriptions.followers(topic) if agent != author)

    async def move_renamed(self) -> None:
        """Move the mail of renamed agents, received and sent, to their current names; a second call does nothing.

        The name changes in another store than the mail, so this also runs at each start.
        """
        for name, agent in self._agents.agents.items():
            if agent.renamed_to is not None:
                present = self._agents.present_name(name)
                await self._inbox.rename_agent(name, present)
                await self._outbox.rename_agent(name, present)


def rejection_reason(refusal: PosthouseError) -> str:
    """Return the reason for the sender of a refused message."""
    reason = refusal.fields.get("reason")
    return f"{refusal.code}: {reason}"[:_REASON_MAX_CHARS] if reason else refusal.code


def new_item(
    event: Event, message: Message, item_id: str, sender_name: str | None, body: str | None, undecryptable: str | None
) -> NewItem:
    """Return the inbox item of a message; without a body, `undecryptable` is the code of the reason."""
    return NewItem(
        id=item_id,
        client_message_id=message.client_message_id,
        message_id=event.id,
        mesh=message.mesh,
        topic=None if message.recipient is not None else message.destination_ref,
        sender=event.pubkey,
        sender_name=sender_name,
        body=body,
        meta=message.meta,
        reply_to_id=message.reply_to,
        priority=message.priority.value,
        budget=None if message.budget is None else encode_mesh_budget(message.budget),
        undecryptable=undecryptable,
        from_agent=message.from_agent,
        to_agent=message.to_agent,
        sent_at_ns=event.created_at_ns,
        traceparent=valid_traceparent(event.value(TRACEPARENT)),
    )


def delivered_item(delivery: Delivery, item_id: str, sender_name: str | None) -> NewItem:
    """Return the inbox item of a delivery of the relay."""
    body, undecryptable = None, None
    try:
        body = delivery.body
    except PosthouseError as failure:
        undecryptable = failure.code
        log.warning("mail_undecryptable", message_id=delivery.id, sender=delivery.sender, code=failure.code)
    return new_item(delivery.event, delivery.message, item_id, sender_name, body, undecryptable)


class LocalLane:
    """Delivers direct mail to agents of this host: the drain uses it like the connection to a relay."""

    is_admitted = True
    may_send = True
    trusts_clock = True

    def __init__(
        self,
        mailroom: Mailroom,
        inbox: Inbox,
        open_event: Callable[[Event], str],
        name_of: Callable[[str], str | None],
    ) -> None:
        self._mailroom = mailroom
        self._inbox = inbox
        self._open_event = open_event
        self._name_of = name_of

    async def wait_sending(self) -> None:
        """Return immediately: no connection is needed."""

    async def submit(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Store messages in the inboxes of their agents; return the answer to each, in order."""
        answers: list[Published | PosthouseError] = []
        items: list[NewItem] = []
        for event in events:
            try:
                items.append(await self._read(event))
            except PosthouseError as refusal:
                answers.append(refusal)
            else:
                answers.append(Published(event, None, False, {"id": event.id}))
        try:
            await self._inbox.put(items)
        except PosthouseError as failure:  # nothing was stored
            return [failure if isinstance(answer, Published) else answer for answer in answers]
        return answers

    async def _read(self, event: Event) -> NewItem:
        message = read_message(event)
        agents = await self._mailroom.recipients(message, event.id)
        item = new_item(
            event, message, self._inbox.minter.mint(), self._name_of(event.pubkey), self._open_event(event), None
        )
        return item._replace(agents=agents)
