"""Records of the Pinch wire; `actor` is the Pinch address that acted, envelopes are opaque."""

from __future__ import annotations

from posthouse.journal.records.shape import RecordType

PINCH = (
    RecordType(
        "pinch.accepted",
        "the Pinch message id, empty for an envelope without one",
        {
            "recipient": "the Pinch address it goes to, always",
            "message_type": "the number of its MessageType, always",
            "size": "bytes of the envelope, always",
            "id": "the id its delivery has in the queue and in records of deliveries, always",
            "blocked": "true when the recipient blocks the sender: then it waits for nobody",
        },
    ),
    RecordType(
        "pinch.confirmed",
        "the Pinch message id",
        {
            "sender": "the Pinch address that sent the message, always",
            "signature": "hex of the confirm's signature, always",
            "timestamp": "the signed time, always",
            "state": "what the confirm says, always",
            "was_stored": "whether it came from the queue, always",
        },
    ),
    RecordType(
        "pinch.blocked",
        "the Pinch address that is blocked",
        {"blocked": "false when a block was lifted, always", "dropped": "ids of queued messages that went with it"},
    ),
)
