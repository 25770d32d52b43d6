"""A client's part of the stream that receives: opens the mailbox on each connection and hands it what comes.

On a new connection confirmations and rejections that were not answered go first, then RECEIVE. A message that is being
confirmed or rejected and comes again meanwhile is not handed out a second time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from posthouse.client.messages.confirming import Confirming
from posthouse.client.messages.delivery import Confirmed, Delivery, Presence
from posthouse.client.messages.mailbox import Mailbox, RosterEntry
from posthouse.client.messages.rejecting import Rejecting
from posthouse.client.problems import error_from
from posthouse.client.signing import Signer, with_mesh
from posthouse.client.stream.commands import text_of, value_of, write_command
from posthouse.client.stream.mail import ForgedMail, SentConfirmed, SentDelivery, SentMail
from posthouse.model.confirmation import read_confirmation
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import Event
from posthouse.model.kinds import CONFIRMATION, MESSAGE
from posthouse.model.message import read_message

log = logging.getLogger(__name__)  # the standard one: a library is silent unless its user asks

_SETTLE_S = 5.0
CODE_REPLACED = 4003
REASON_REPLACED = "replaced_by_newer_connection"
#: notices that answer a RECEIVE
_REFUSALS = frozenset({"mesh_unknown", "not_member", "right_missing", "verb_unknown", "mailbox_open"})
_ROSTER = msgspec.json.Decoder(list[RosterEntry])


class Receiving:
    """The mailbox of a client, if it has one, and what it says about messages."""

    def __init__(
        self,
        signer: Signer,
        send: Callable[[bytes], None],
        restart: Callable[[], None],
        is_up: Callable[[], bool],
        relay: str,
        *,
        is_verifying: bool,
    ) -> None:
        self._signer = signer
        self._send = send
        self._restart = restart
        self._is_up = is_up
        self._relay = relay
        self._is_verifying = is_verifying
        self._mailbox: Mailbox | None = None
        self.confirming = Confirming(self._sign_confirmation, send, relay)
        self.rejecting = Rejecting(send, relay)

    def open(self, mailbox: Mailbox) -> None:
        """Open a mailbox; a client has one at a time."""
        if self._mailbox is not None:
            raise error("mailbox_open", mesh=self._mailbox.mesh)
        self._mailbox = mailbox
        self._ask(mailbox)

    def forget(self, mailbox: Mailbox, *, is_leaving: bool) -> None:
        """Let a mailbox go; only the end of its connection closes it at the relay."""
        if self._mailbox is mailbox:
            self._mailbox = None
            if is_leaving:
                self._restart()

    @property
    def handlers(self) -> dict[str, Callable[[Sequence[msgspec.Raw]], None]]:
        """The verbs that are for a mailbox."""
        return {
            "OK": self._take_ok,
            "QUEUE_STATUS": self._take_queue_status,
            "ROSTER": self._take_roster,
            "PRESENCE": self._take_presence,
            "NOTICE": self._take_notice,
        }

    def resume(self) -> None:
        """Go on over a new connection."""
        self.confirming.resume()
        self.rejecting.resume()
        if self._mailbox is not None:
            self._mailbox.begin()
            self._ask(self._mailbox)

    def fail(self, failure: PosthouseError) -> None:
        """End everything: quietly when the client was closed, else with the error."""
        self.confirming.fail(failure)
        self.rejecting.fail(failure)
        if self._mailbox is not None:
            self._mailbox.fail(failure)

    async def settle(self) -> None:
        """Give the answers to the last confirmations and rejections a moment to come."""
        try:
            async with asyncio.timeout(_SETTLE_S if self._is_up() else 0):
                await self.confirming.settled()
                await self.rejecting.settled()
        except TimeoutError:
            pass  # what was not answered is delivered again

    def take_lost(self, code: int | None, reason: str) -> None:
        """Look why the present connection ended: a mailbox that somebody else has opened is theirs."""
        if self._mailbox is not None and (code == CODE_REPLACED or reason == REASON_REPLACED):
            self._mailbox.fail(error("mailbox_replaced", mesh=self._mailbox.mesh))

    def take_mail(self, mail: SentMail | ForgedMail) -> None:
        """Handle DELIVER and CONFIRMED."""
        mailbox = self._mailbox
        if mailbox is None:
            return
        if isinstance(mail, ForgedMail):
            self._refuse(mailbox, mail.delivery_id, mail.fault)
        elif isinstance(mail, SentDelivery):
            self._deliver(mailbox, mail)
        elif (confirmed := self._read_confirmed(mailbox, mail)) is not None:
            mailbox.take_confirmed(confirmed)

    def _deliver(self, mailbox: Mailbox, mail: SentDelivery) -> None:
        event, about = mail.event, mail.about
        if event.id in self.confirming or event.id in self.rejecting:
            return
        if self._is_verifying and (fault := self._fault(mailbox, event)) is not None:
            self._refuse(mailbox, event.id, fault)
            return
        key = self._signer.key
        mailbox.take_delivery(Delivery(event, mail.seq, was_stored=about.was_stored, attempt=about.attempt, key=key))

    def _fault(self, mailbox: Mailbox, event: Event) -> PosthouseError | None:
        """Return why an event is no message for this mailbox; its signature was looked at before."""
        try:
            message = read_message(event) if event.kind == MESSAGE else None
        except PosthouseError as fault:
            return fault
        is_ours = message is not None and message.mesh == mailbox.mesh
        if message is None or not is_ours or message.recipient not in (None, self._signer.key.node):
            return error("answer_invalid", relay=self._relay, reason=f"{event.id} is no message for this mailbox")
        return None

    def _refuse(self, mailbox: Mailbox, delivery_id: str | None, fault: PosthouseError) -> None:
        log.warning("mail of %s is refused: %s", self._relay, fault)
        mailbox.forged += 1
        if delivery_id is not None:
            self.rejecting.reject(delivery_id, fault.code)

    def _read_confirmed(self, mailbox: Mailbox, mail: SentConfirmed) -> list[Confirmed] | None:
        event = mail.event
        try:
            confirmation = read_confirmation(event)
        except PosthouseError as fault:
            self._refuse(mailbox, None, fault)
            return None
        ids = set(confirmation.ids)
        if confirmation.sender != self._signer.key.node or not all(item.id in ids for item in mail.items):
            reason = f"{event.id} does not confirm what it is said to"
            self._refuse(mailbox, None, error("answer_invalid", relay=self._relay, reason=reason))
            return None
        return [Confirmed(item.id, confirmation.reader, item.was_stored, item.at_ns, event) for item in mail.items]

    def _ask(self, mailbox: Mailbox) -> None:
        self._send(write_command("RECEIVE", mailbox.mesh, {"window": mailbox.window, "instance": mailbox.instance}))

    def _sign_confirmation(self, mesh: str, sender: str, ids: Sequence[str]) -> Event:
        return self._signer.sign(CONFIRMATION, "", with_mesh([("p", sender), *(("e", id_) for id_ in ids)], mesh))

    def _take_ok(self, arguments: Sequence[msgspec.Raw]) -> None:
        answered = value_of(arguments[0])
        if isinstance(answered, str) and (answered in self.rejecting or self.confirming.expects(answered)):
            is_accepted, body = value_of(arguments[1]) is True, value_of(arguments[2])
            self.confirming.take_ok(answered, is_accepted, body)
            self.rejecting.take_ok(answered, is_accepted, body)

    def _take_queue_status(self, arguments: Sequence[msgspec.Raw]) -> None:
        count = value_of(arguments[0])
        if self._mailbox is not None and isinstance(count, int):
            self._mailbox.waiting = count

    def _take_roster(self, arguments: Sequence[msgspec.Raw]) -> None:
        if self._mailbox is not None and text_of(arguments[0]) == self._mailbox.mesh:
            self._mailbox.waiting = 0  # the count follows, if anything waits
            self._mailbox.take_roster(_ROSTER.decode(arguments[1]))

    def _take_presence(self, arguments: Sequence[msgspec.Raw]) -> None:
        mesh, node, word = (text_of(argument) for argument in arguments)
        if self._mailbox is not None and mesh == self._mailbox.mesh:
            self._mailbox.take_presence(Presence(node, word == "online"))

    def _take_notice(self, arguments: Sequence[msgspec.Raw]) -> None:
        code, text = (text_of(argument) for argument in arguments)
        mailbox = self._mailbox
        if mailbox is None or mailbox.is_open or code not in _REFUSALS:
            return
        problem: dict[str, Any] = {"code": code, "detail": text, "status": 403, "mesh": mailbox.mesh, "verb": "RECEIVE"}
        failure = error_from(problem, self._relay)
        if not isinstance(failure, Transient):
            mailbox.fail(failure)
