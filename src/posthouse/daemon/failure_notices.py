"""Notifies agents of this host about messages that will not arrive: a recipient refused them, or they are dead.

A notice is mail from the host itself to the agent that sent the message, put straight into its inbox. It is marked as a
report of a failure, so it wakes no agent; hooks announce it like other mail. Its id is derived from the first message
that it reports, so a repeated notice changes nothing. Messages that fail together for one reason share a notice. No
notice is sent about a withdrawal or another report of a failure, about a request, whose sender waits for its answer, or
about a message from the bus, whose handlers would mistake the notice for work. A notice names the code of the failure
and never repeats text that another host wrote.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from posthouse.client.messages.sender import Composer, MessageOptions
from posthouse.daemon.mailroom import LocalLane
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.outbox_rows import OutboxRow
from posthouse.daemon.roster import TOPIC_MARK, Roster
from posthouse.model.address import Address
from posthouse.model.errors import PosthouseError, Refused
from posthouse.model.event import decode_event
from posthouse.model.freshness import FAILURE, read_freshness
from posthouse.model.message import read_message
from posthouse.model.request import REQUEST
from posthouse.model.strict_json import parse_jcs

log = structlog.get_logger(__name__)
FROM_BUS = "bus-"  # begins the client_message_id of a message that came from the bus
_CODE = re.compile(r"[a-z_]{1,64}(?![^:])")  # at the beginning of a reason: alone, or before a colon
_DIGITS_SHOWN = 8


class Failed(NamedTuple):
    """A message that will not arrive."""

    #: id of its row in the outbox, or of the message
    key: str
    #: a code, alone or before a colon and more text; None if the recipient gave no reason
    reason: str | None


class FailureNotices:
    """Sends the notices of one mesh."""

    def __init__(
        self, node: str, mesh: str, outbox: Outbox, composer: Composer, lane: LocalLane, roster: Roster
    ) -> None:
        self._node = node
        self._mesh = mesh
        self._outbox = outbox
        self._composer = composer
        self._lane = lane
        self._roster = roster
        self._failed: asyncio.Queue[Failed] = asyncio.Queue()

    def add(self, failed: Failed) -> None:
        """Queue a notice about a message, which `run` sends."""
        self._failed.put_nowait(failed)

    async def run(self) -> None:
        """Send the notices about the messages that were added, until cancelled."""
        while True:
            failed = [await self._failed.get()]
            while not self._failed.empty():
                failed.append(self._failed.get_nowait())
            try:
                await self.tell(failed)
            except PosthouseError as failure:  # a full disk: the rows of the outbox still have the outcome
                log.warning("failure_not_told", code=failure.code, messages=len(failed))

    async def tell(self, failed: Sequence[Failed]) -> None:
        """Send notices about messages; raises the failure if the inbox cannot store them now."""
        alike: dict[tuple[str, str, str], list[OutboxRow]] = {}
        for each in failed:
            row = await self._row(each.key)
            if row is not None:
                recipient = self._shown_recipient(row)
                alike.setdefault((row.from_agent, recipient, _code(each.reason)), []).append(row)
        for (agent, recipient, code), rows in alike.items():
            await self._send(agent, recipient, code, rows)

    async def _row(self, key: str) -> OutboxRow | None:
        """Return the row of a message that needs a notice."""
        try:
            row = await self._outbox.find(key)
        except Refused:  # not in this outbox: another process sent it with the same key
            return None
        raw = await self._outbox.event_of(row)
        meta = read_message(decode_event(raw)).meta if raw is not None else ""
        said = parse_jcs(meta) if meta else {}
        fresh, is_from_bus = read_freshness(said), row.client_message_id.startswith(FROM_BUS)
        is_quiet = REQUEST in said or fresh.is_failure or fresh.withdraws is not None or is_from_bus
        return None if is_quiet else row

    def _shown_recipient(self, row: OutboxRow) -> str:
        if not row.destination or row.destination.startswith(TOPIC_MARK):
            return row.destination or "a recipient"
        host = self._roster.host_of(row.destination)
        return str(Address(row.to_agent, host)) if row.to_agent else host

    async def _send(self, agent: str, recipient: str, code: str, rows: Sequence[OutboxRow]) -> None:
        first = rows[0].message_id
        which = f"Your message {first[:_DIGITS_SHOWN]}" if len(rows) == 1 else f"{len(rows)} of your messages"
        text = f"{which} to {recipient} will not arrive: {code}."
        if len(rows) > 1:
            text += f" The first is {first[:_DIGITS_SHOWN]}."
        options: MessageOptions = {
            "client_message_id": f"undelivered-{first}",
            "to_agent": agent,
            "meta": {FAILURE: True},
        }
        request = self._composer.request(self._node, text, self._mesh, options)
        [answer] = await self._lane.submit([self._composer.seal_and_sign(request)])
        if isinstance(answer, Refused):  # the agent was retired, or has too much unread mail
            log.info("failure_not_told", code=answer.code, agent=agent)
        elif isinstance(answer, PosthouseError):
            raise answer


def _code(reason: str | None) -> str:
    found = _CODE.match(reason or "")
    return found.group() if found else "refused"
