"""Records of accepted events: exactly one each, and its seq is the event's seq everywhere.

The content lives once, in the table of events; feed views join it by `ref`.
"""

from __future__ import annotations

from posthouse.journal.records.shape import RecordType

EVENTS = (
    RecordType(
        "event.accepted",
        "the event id",
        {"kind": "the event's kind, always", "size": "bytes of its canonical form, always"},
    ),
    RecordType(
        "message.accepted",
        "the event id",
        {
            "size": "bytes of the event's canonical form, always",
            "client_message_id": "the sender's id of the message, always",
            "fingerprint": "hex of the accept fingerprint, always",
            "destination_kind": "topic or dm, always",
            "destination_ref": "the topic, or the recipient's key in hex; always",
            "recipients": "node ids whose delivery this record opens, always",
            "blocked": "node ids whose delivery was opened as blocked: they block the sender",
            "not_queued": "recipients left out, each {recipient, reason}",
            "mentions": "node ids that are mentioned",
            "reply_to": "the event id replied to",
        },
    ),
    RecordType(
        "confirmation.accepted",
        "the event id",
        {
            "size": "bytes of the event's canonical form, always",
            "ids": "the message ids that it closes, always",
            "sender": "the node id of their sender, always",
        },
    ),
)
