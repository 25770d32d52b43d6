"""Rules the rows of the Pinch wire keep; each yields findings as sentences.

Every delivery of an envelope has it and every envelope its delivery; what the journal says of an envelope is what its
row holds; every confirm in the journal carries a signature of its reader. States of deliveries and blocks are compared
with the journal together with those of all meshes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from posthouse.journal.read import read_after
from posthouse.journal.record import Record
from posthouse.journal.verify import Rule
from posthouse.keys import verify
from posthouse.model.errors import PosthouseError
from posthouse.model.node import node_from_key
from posthouse.model.pinch import confirm_bytes, delivery_id, parse_address
from posthouse.relay.pinch.sqlite.component import SQL

_RECORDS_PER_READ = 1_000


def check_envelopes(db: apsw.Connection) -> Iterator[str]:
    """Compare envelopes with their deliveries and their records."""
    for seq, node in db.execute(SQL.deliveries_without_envelope):
        yield f"pinch: the delivery of {seq} for {node} has not its envelope"
    for (seq,) in db.execute(SQL.envelopes_without_delivery):
        yield f"pinch: the envelope {seq} has no delivery"
    horizon: int = db.execute(SQL.horizon).get
    for seq, *row in db.execute(SQL.envelopes):
        if seq >= horizon and not _is_recorded(db, seq, *row):
            yield f"pinch: the envelope {seq} is not that of its record"


def check_confirms(db: apsw.Connection) -> Iterator[str]:
    """Verify the signature of every confirm in the journal."""
    seq = 0
    while records := read_after(db, seq, _RECORDS_PER_READ, {"pinch.confirmed"}):
        for record in records:
            if not is_confirm_signed(record):
                yield f"pinch: the confirm {record.seq} is not signed by {record.actor}"
        seq = records[-1].seq


def is_confirm_signed(record: Record) -> bool:
    """Tell whether the reader that a pinch.confirmed record names signed what it confirms."""
    body = record.decoded_body()
    try:
        reader = node_from_key(parse_address(str(record.actor)).key)
        verify(reader, confirm_bytes(str(record.ref).encode(), body["timestamp"]), body["signature"])
    except PosthouseError:
        return False
    return True


def _is_recorded(
    db: apsw.Connection,
    seq: int,
    id_: str,
    sender: str,
    message_id: bytes,
    message_type: int,
    at_ns: int,
    envelope: bytes | None,
    recipient: str,
) -> bool:
    found: list[Record] = read_after(db, seq - 1, 1, None)
    if not found or found[0].seq != seq or found[0].type != "pinch.accepted":
        return False
    record, body = found[0], found[0].decoded_body()
    said: tuple[Any, ...] = (record.actor, str(record.ref).encode(), record.at_ns, body["message_type"])
    if said != (sender, message_id, at_ns, message_type) or (body["id"], body["recipient"]) != (id_, recipient):
        return False
    if message_id and delivery_id(sender, message_id, at_ns).hex() != id_:
        return False
    return envelope is None or len(envelope) == body["size"]


PINCH_RULES: tuple[Rule, ...] = (check_envelopes, check_confirms)
