"""Taking a reader's confirm inside the transaction: its row leaves, and the sender is told.

A confirm counts for a row of its reader that is open or parked, from the sender it names; any other changes nothing.
The signature was verified before; record and waiting row keep it, so that the audit and the sender can verify it too.
"""

from __future__ import annotations

from posthouse.model.node import PINCH_MESH
from posthouse.relay.deliver.mail import Confirmed, Mail
from posthouse.relay.deliver.rows import OPEN, PARKED, Closed, Row
from posthouse.relay.deliver.settings import DeliverySettings
from posthouse.relay.pinch.jobs import Confirming, Outcome
from posthouse.relay.pinch.told import Told, encode_told
from posthouse.relay.pinch.wire import forwarded_confirm
from posthouse.relay.store.interface import Unit
from posthouse.relay.stream.frame import binary_frame


def confirm(unit: Unit, settings: DeliverySettings, job: Confirming, mail: Mail) -> Outcome:
    """Close the row a confirm names and keep the confirm for its sender, or say that it has no effect."""
    boxes = unit.deliveries.boxes(PINCH_MESH, (job.reader, job.sender))
    reader, sender = boxes.get(job.reader), boxes.get(job.sender)
    if reader is None or sender is None:
        return Outcome.IGNORED
    row = unit.pinch.find(reader.mailbox, sender.mailbox, job.envelope.delivery_confirm.message_id)
    if row is None:
        return Outcome.IGNORED
    if not _counts(row, unit.now_ns - settings.queue_ttl_ns):
        mail.closed.append(Closed(PINCH_MESH, job.reader, [row.seq]))  # nothing waits for it
        return Outcome.IGNORED
    unit.deliveries.confirm(reader.mailbox, [row.seq], int(row.state in OPEN), int(row.state in PARKED))
    seq = _append(unit, job, row)
    envelope = forwarded_confirm(job.envelope, row.was_stored)
    told = Told(row.id, row.was_stored, unit.now_ns, envelope)
    unit.deliveries.tell_sender(sender.mailbox, seq, 1, encode_told(told), settings.confirmation_reserve)
    mail.confirmed.append(Confirmed(PINCH_MESH, job.reader, job.sender, (row.seq,), seq, binary_frame(envelope)))
    return Outcome.ACCEPTED


def _counts(row: Row, before_ns: int) -> bool:
    return row.state in PARKED or (row.state in OPEN and row.opened_at_ns >= before_ns)


def _append(unit: Unit, job: Confirming, row: Row) -> int:
    given = job.envelope.delivery_confirm
    message_id = given.message_id.decode()
    body = {
        "sender": job.sender,
        "signature": given.signature.hex(),
        "timestamp": given.timestamp,
        "state": given.state,
        "was_stored": row.was_stored,
    }
    seq = unit.append("pinch.confirmed", mesh=PINCH_MESH, actor=job.reader, ref=message_id, body=body)
    closed = {"ids": [row.id], "was_stored": [row.was_stored], "confirmation": message_id}
    unit.append("delivery.confirmed", mesh=PINCH_MESH, actor=job.reader, ref=job.reader, body=closed)
    return seq
