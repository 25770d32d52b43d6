"""Receipts: report to senders whether their direct messages were read or rejected, and receive such reports.

A receipt follows a confirmation: the program of an agent was given the full text, or the agent refused the message.
Receipts of one agent for one sender are collected for 5 seconds, or until there are 50, and sent under one signature.
The same bytes are sent again after a reconnect, so a lost answer costs nothing. A receipt without an answer when the
process ends is lost: a caller that must not lose receipts keeps them until the future of `add` is done. Nothing is sent
to a relay without the feature `receipts`: it would store them as events for every member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from posthouse.client.stream.frames import write_command
from posthouse.client.stream.pending import Answer, Kind, Pending, PendingCommands
from posthouse.client.trust.signing import Signer, with_mesh
from posthouse.model.address import validate_agent_name
from posthouse.model.errors import PosthouseError
from posthouse.model.event import RECEIPT, Event
from posthouse.model.limits import CONFIRMATION_MAX_IDS
from posthouse.model.receipt import ReceiptItem, ReceiptState, receipt_tags

GATHER_S = 5.0
RECEIPTS_FEATURE = "receipts"
_NO_EFFECT = "receipt_without_effect"


class Receipt(NamedTuple):
    """The outcome of a message of this node."""

    #: of the message
    id: str
    #: node id of the host that read or rejected it
    reader: str
    #: its agent; "" for the default inbox
    agent: str
    state: ReceiptState
    #: Unix milliseconds by the clock of that host
    at_ms: int
    #: why it was rejected
    reason: str | None
    #: the receipt, signed by that host
    event: Event


class _Origin(NamedTuple):
    mesh: str
    sender: str
    agent: str


_Waiting = list[tuple[ReceiptItem, asyncio.Future[bool]]]


class _Batch(Pending):
    """One signed receipt without an answer."""

    __slots__ = ("_on_answer", "waiting")

    def __init__(self, event: Event, waiting: _Waiting, on_answer: Callable[[_Batch, Answer], None]) -> None:
        self.waiting = waiting
        self._on_answer = on_answer
        super().__init__(Kind.CONFIRM, event.id, write_command("EVENT", event))

    def on_answer(self, answer: Answer) -> None:
        self._on_answer(self, answer)


class Receipts:
    """Sends receipts of one node's agents."""

    def __init__(self, commands: PendingCommands, signer: Signer) -> None:
        self.gather_s = GATHER_S
        self._commands = commands
        self._signer = signer
        self._collecting: dict[_Origin, _Waiting] = {}
        self._timers: dict[_Origin, asyncio.TimerHandle] = {}
        self._unanswered: set[asyncio.Future[bool]] = set()

    def add(
        self,
        message_id: str,
        sender: str,
        *,
        mesh: str,
        at_ms: int,
        agent: str = "",
        state: ReceiptState | str = ReceiptState.READ,
        reason: str | None = None,
    ) -> asyncio.Future[bool]:
        """Report to the sender of a direct message that it was read or rejected.

        The future is True once the relay has the receipt, or had one; False if the relay accepts none for this message.
        The caller need not await it.
        """
        loop = asyncio.get_running_loop()
        origin = _Origin(mesh, sender, validate_agent_name(agent) if agent else "")
        future: asyncio.Future[bool] = loop.create_future()
        collected = self._collecting.setdefault(origin, [])
        collected.append((ReceiptItem(message_id, ReceiptState(state), at_ms, reason), future))
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)
        if len(collected) == CONFIRMATION_MAX_IDS:
            self._send(origin)
        elif origin not in self._timers:
            self._timers[origin] = loop.call_later(self.gather_s, self._send, origin)
        return future

    def flush(self) -> None:
        """Send all collected receipts now."""
        for origin in list(self._collecting):
            self._send(origin)

    async def settled(self) -> None:
        """Send everything and wait for the answers."""
        self.flush()
        if self._unanswered:
            await asyncio.wait(self._unanswered)

    def _send(self, origin: _Origin) -> None:
        timer = self._timers.pop(origin, None)
        if timer is not None:
            timer.cancel()
        waiting = self._collecting.pop(origin)
        if self._commands.link.is_up and not self._commands.link.supports(RECEIPTS_FEATURE):
            _settle(waiting, {item.id for item, _future in waiting})
            return
        tags = receipt_tags(origin.sender, origin.agent, [item for item, _future in waiting])
        event = self._signer.sign(RECEIPT, "", with_mesh(tags, origin.mesh))
        self._commands.add(_Batch(event, waiting, self._on_answer))

    def _on_answer(self, batch: _Batch, answer: Answer) -> None:
        if isinstance(answer, PosthouseError) and answer.code != _NO_EFFECT:
            for _item, future in batch.waiting:
                if not future.done():
                    future.set_exception(answer)
                    future.exception()  # marks it as retrieved: the caller need not await it
            return
        body = answer.fields if isinstance(answer, PosthouseError) else answer
        _settle(batch.waiting, _refused_ids(body.get("ignored")))


def _refused_ids(ignored: object) -> set[str]:
    """Return the ids that the relay ignored for another reason than that they have a receipt."""
    listed: Sequence[object] = ignored if isinstance(ignored, list) else ()
    return {str(each.get("id")) for each in listed if isinstance(each, dict) and each.get("reason") != "duplicate"}


def _settle(waiting: _Waiting, refused: set[str]) -> None:
    for item, future in waiting:
        if not future.done():
            future.set_result(item.id not in refused)
