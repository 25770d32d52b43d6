"""Answers requests that no program of this host will answer, so that their senders do not wait until the deadline.

It answers a request to a paused agent with `busy`. A request that wants an answer now, to an agent whose program has
ended, gets `no_responder`. It never declines a request that a bus endpoint serves: the bridge passes on only requests
that no endpoint took. The id of such an answer is derived from the request, so it is sent once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.inbox.inbox_items import InboxItem
from posthouse.daemon.send import Sending, SendRequest, sender_address
from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.request import AnswerState, RequestMode

log = structlog.get_logger(__name__)


class RequestDesk:
    """Declines requests to the agents of one host in one mesh."""

    def __init__(self, sending: Sending, agents: AgentRegistry) -> None:
        self._sending = sending
        self._agents = agents
        self._arrived: asyncio.Queue[InboxItem] = asyncio.Queue()

    def on_new(self, items: Sequence[InboxItem]) -> None:
        """Queue new requests for `run`."""
        for item in items:
            if item.request is not None:
                self._arrived.put_nowait(item)

    async def run(self) -> None:
        """Decline what no program will answer, until cancelled."""
        while True:
            await self.decline_unattended(await self._arrived.get())

    async def decline_unattended(self, item: InboxItem) -> None:
        """Answer a request whose agent is paused or gone."""
        if item.request is None or item.topic is not None:
            return
        pause = self._agents.pause_of(item.to_agent)
        if pause is not None:
            why = f": {pause.reason}" if pause.reason else ""
            await self.decline(item, AnswerState.BUSY, f"it is paused until {format_utc(pause.until_ns)}{why}")
        elif item.request == RequestMode.NOW and (reason := self._agents.absence_of(item.to_agent)) is not None:
            await self.decline(item, AnswerState.NO_RESPONDER, reason)

    async def decline(self, item: InboxItem, state: AnswerState, reason: str) -> None:
        """Answer a request without doing its work."""
        answer = SendRequest(
            to=sender_address(item.sender, item.from_agent),
            message=reason,
            reply_to_id=item.message_id,
            client_message_id=f"answer-{item.message_id}",
            failure=True,
            answer=state,
        )
        try:
            await self._sending.send(answer, agent=item.to_agent)
        except PosthouseError as failure:  # the sender waits until its deadline
            log.warning("request_not_declined", message_id=item.message_id, code=failure.code)
