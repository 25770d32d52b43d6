"""A finding: something that cannot be true of a sound history, and where it stands.

Codes are stable; what each means is said once, here, and shown in the summary and in docs/how-to/pipeline-audit.md.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

#: code -> what it means
CODES = MappingProxyType(
    {
        "seq_gap": "records are missing between two that are there",
        "seq_twice": "a seq is there twice",
        "time_back": "a record is older than the one before it",
        "history_headless": "history begins late and no snapshot stands for what came before",
        "record_type_unknown": "a record of a type that posthouse does not write",
        "record_body_invalid": "the body of a record is not what its type declares",
        "event_missing": "a record tells of an event that is not there",
        "record_missing": "an event is there that no record tells of",
        "event_unreadable": "the content of an event cannot be read",
        "event_id_wrong": "the content of an event does not hash to its id",
        "signature_invalid": "the signature of an event is not its author's",
        "event_disagrees": "a record says something else than the event it tells of",
        "event_twice": "an event was accepted twice",
        "message_id_reused": "one sender's client_message_id was accepted for two messages",
        "delivery_missing": "a message was not queued for somebody it was for",
        "delivery_unexpected": "a message was queued for somebody it was not for",
        "delivery_unknown": "something happened to a delivery that was never opened",
        "delivery_opened_twice": "a delivery was opened while it was open",
        "delivery_outcome_twice": "a delivery ended that had ended",
        "confirmation_disagrees": "a confirmation and what it closed do not agree",
        "snapshot_disagrees": "a snapshot does not say what its history leads to",
        "token_not_growing": "a fencing token is not above those before it",
        "lease_overlap": "a lock was granted while another lease held",
        "lock_record_wrong": "a record of a lock that the rules of leases do not allow",
        "fence_violated": "a fenced event was accepted without holding the lock",
        "outbox_unknown": "something happened to an outbox row that was never queued",
        "outbox_outcome_twice": "an outbox row ended that had ended",
        "outbox_id_reused": "one client_message_id is in an outbox twice",
        "chain_broken": "a row names a successor that is not there, or not its own",
        "inbox_unknown": "a message was seen that was never received",
        "inbox_twice": "a message was received twice",
        "stores_disagree": "two stores say different things of one message",
        "bus_disagrees": "a record of the bus and the envelope in it do not agree",
        "bus_published_twice": "a message was published into a mailbox in which it lies",
        "bus_unknown": "something happened to a message of the bus that was never there",
        "pinch_signature_invalid": "a Pinch confirm is not signed by its reader",
        "pinch_unknown": "a Pinch confirm names an envelope that was never accepted",
        "lake_altered": "rows of the lake are not those that were committed",
        "store_altered": "records of a store are not those that the lake committed",
        "lake_lacks_rows": "the lake does not hold what its commits say",
        "store_damaged": "a store breaks its own rules; see `posthouse relay check`",
    }
)


class Finding(NamedTuple):
    """One line of the table of findings."""

    code: str
    #: relay, bus, outbox, inbox or lake
    store: str
    #: of the history that it stands in
    epoch: str
    ref: str
    seq: int
    detail: str


SCHEMA = "code string, store string, epoch string, ref string, seq bigint, detail string"
