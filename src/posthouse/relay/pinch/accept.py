"""Accepting Pinch envelopes inside the transaction: known ids, room, blocks, rows.

One object serves the envelopes of one unit of work, as posthouse.relay.deliver.messages does for events: the same
mailboxes, the same counters and the same caps, with an opaque envelope in the place of an event.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from posthouse.model.node import PINCH_MESH
from posthouse.model.pinch import delivery_id
from posthouse.relay.deliver.boxes import Boxes, GroupBox
from posthouse.relay.deliver.mail import Mail
from posthouse.relay.deliver.mailbox import Offer
from posthouse.relay.deliver.rows import NewDelivery
from posthouse.relay.deliver.settings import DeliverySettings
from posthouse.relay.pinch.jobs import Outcome, Posting
from posthouse.relay.pinch.rows import NewEnvelope
from posthouse.relay.pinch.wire import is_confirmed_by_reader
from posthouse.relay.store.interface import Unit
from posthouse.relay.stream.frame import binary_frame


class _Plan(NamedTuple):
    posting: Posting
    is_blocked: bool


class Postings:
    """The envelopes of one unit of work."""

    def __init__(self, unit: Unit, settings: DeliverySettings, postings: Sequence[Posting], mail: Mail) -> None:
        self._unit = unit
        self._settings = settings
        self._boxes = Boxes(unit, settings, mail)
        self._boxes.load([(PINCH_MESH, each) for posting in postings for each in (posting.sender, posting.recipient)])
        self._fresh: set[tuple[str, bytes]] = set()
        self._blockers: dict[str, frozenset[str]] = {}
        self._plans: list[_Plan] = []
        #: what goes to readers at the tail, by address
        self.offers: dict[str, list[Offer]] = {}

    def claim(self, posting: Posting) -> Outcome:
        """Take the room of an envelope, or say why there is none."""
        if self._is_known(posting):
            return Outcome.DUPLICATE
        box = self._box(posting.recipient)
        if not self._boxes.has_room(box):
            return Outcome.QUEUE_FULL
        is_blocked = posting.recipient in self._blockers_of(posting.sender)
        if not is_blocked:
            box.added += 1
        self._plans.append(_Plan(posting, is_blocked))
        self._fresh.add((posting.sender, posting.message_id))
        return Outcome.ACCEPTED

    def write(self) -> None:
        """Write everything that was claimed, in order."""
        plans = self._plans
        self._boxes.write([self._box(name) for plan in plans for name in (plan.posting.sender, plan.posting.recipient)])
        envelopes: list[NewEnvelope] = []
        deliveries: list[NewDelivery] = []
        for plan in plans:
            self._write(plan, envelopes, deliveries)
        if plans:
            self._unit.pinch.add(envelopes)
            self._unit.deliveries.open((), (), deliveries, ())

    def _write(self, plan: _Plan, envelopes: list[NewEnvelope], deliveries: list[NewDelivery]) -> None:
        posting, now_ns = plan.posting, self._unit.now_ns
        number = 0 if posting.message_id else secrets.randbits(62)
        key = delivery_id(posting.sender, posting.message_id, now_ns, number)
        seq = self._append(plan, key)
        sender, reader = self._box(posting.sender).number, self._box(posting.recipient).number
        envelopes.append((seq, key, sender, posting.message_id, posting.message_type, now_ns, posting.raw))
        if plan.is_blocked:
            deliveries.append((seq, reader, "pinch", key, sender, seq, "blocked", now_ns, now_ns))
            return
        deliveries.append((seq, reader, "pinch", key, sender, seq, "queued", now_ns, None))
        is_leaving = not is_confirmed_by_reader(posting.message_type)
        offer = Offer(seq, key.hex(), binary_frame(posting.raw), is_leaving)
        self.offers.setdefault(posting.recipient, []).append(offer)

    def _append(self, plan: _Plan, key: bytes) -> int:
        posting = plan.posting
        body = {
            "recipient": posting.recipient,
            "message_type": posting.message_type,
            "size": len(posting.raw),
            "id": key.hex(),
        }
        if plan.is_blocked:
            body["blocked"] = True
        ref = posting.message_id.decode()
        return self._unit.append("pinch.accepted", mesh=PINCH_MESH, actor=posting.sender, ref=ref, body=body)

    def _is_known(self, posting: Posting) -> bool:
        if not posting.message_id:
            return False
        if (posting.sender, posting.message_id) in self._fresh:
            return True
        sender = self._box(posting.sender).number
        since_ns = self._unit.now_ns - self._settings.queue_ttl_ns
        return sender != 0 and self._unit.pinch.is_known(sender, posting.message_id, since_ns)

    def _box(self, address: str) -> GroupBox:
        return self._boxes.find(PINCH_MESH, address)

    def _blockers_of(self, sender: str) -> frozenset[str]:
        blockers = self._blockers.get(sender)
        if blockers is None:
            blockers = self._blockers[sender] = self._unit.deliveries.blockers(PINCH_MESH, sender)
        return blockers
