"""Records of deliveries: what happened to a message on its way to one reader. `actor` is the reader's node id,
unless the text says otherwise; each opening of a delivery has one outcome.
"""

from __future__ import annotations

from posthouse.journal.records.shape import RecordType

_IDS = "the message ids, always"

DELIVERIES = (
    # One record per batch, written with what commits next: nobody waits for it.
    RecordType(
        "delivery.sent",
        "the reader's node id",
        {
            "ids": _IDS,
            "was_stored": "for each id whether it came from the queue, always",
            "attempts": "for each id the number of the attempt, always",
        },
    ),
    RecordType(
        "delivery.confirmed",
        "the reader's node id",
        {
            "ids": _IDS,
            "was_stored": "for each id whether it came from the queue, always",
            "confirmation": "the event id of the confirmation, always; in the mesh pinch the Pinch message id, "
            "or empty where the answer to a ping proved that it was read",
        },
    ),
    RecordType("delivery.rejected", "the message id", {"reason": "what the reader said, always"}),
    RecordType("delivery.expired", "the reader's node id", {"ids": _IDS}),
    RecordType(
        "delivery.dead",
        "the message id",
        {"attempts": "how often it was sent, always", "reason": "which bound it reached, always"},
    ),
    RecordType(
        "delivery.requeued",
        "the message id",
        {"recipient": "the reader's node id, always; actor is the operator", "from_state": "the state it had, always"},
    ),
    RecordType(
        "delivery.purged",
        "the reader's node id",
        {"ids": _IDS, "recipient": "the reader's node id, always; actor is the operator"},
    ),
    RecordType("delivery.blocked", "the reader's node id", {"ids": _IDS, "sender": "who is blocked, always"}),
)
