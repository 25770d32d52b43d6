"""A finding: a contradiction in a history, with its location; and the result of a lake's newest audit.

Codes are stable. CODES defines the meaning of each; the audit summary and docs/how-to/pipeline-audit.md show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from posthouse.files import private_dir, write_atomic

#: Code -> meaning.
CODES = MappingProxyType(
    {
        "seq_gap": "records are missing between two existing records",
        "seq_twice": "two records have the same seq",
        "time_back": "a record is older than its predecessor",
        "history_headless": "the history lacks its beginning, and no snapshot covers the missing records",
        "record_type_unknown": "a record has a type that posthouse does not write",
        "record_body_invalid": "the body of a record does not have the form its type declares",
        "event_missing": "a record refers to an event that does not exist",
        "record_missing": "an event exists without a record",
        "event_unreadable": "the content of an event cannot be parsed",
        "event_id_wrong": "the content of an event does not hash to its id",
        "signature_invalid": "the signature of an event is not its author's",
        "event_disagrees": "a record contradicts the event it refers to",
        "event_twice": "an event was accepted twice",
        "message_id_reused": "two messages were accepted with the same sender and client_message_id",
        "delivery_missing": "a message was not queued for one of its readers",
        "delivery_unexpected": "a message was queued for a node that is not one of its readers",
        "delivery_unknown": "a record refers to a delivery that was never opened",
        "delivery_opened_twice": "a delivery was opened while it was open",
        "delivery_outcome_twice": "a delivery ended after it had ended",
        "confirmation_disagrees": "a confirmation contradicts the record of the deliveries that it closed",
        "snapshot_disagrees": "a snapshot contradicts the history before it",
        "token_not_growing": "a fencing token is not greater than all tokens before it",
        "token_granted_twice": "a store granted one fencing token twice",
        "lease_overlap": "a lock was granted while another lease was valid",
        "lock_record_wrong": "the lease rules do not allow a lock record",
        "fence_violated": "a fenced event was accepted although its author did not hold the lock",
        "outbox_unknown": "a record refers to an outbox row that was never queued",
        "outbox_outcome_twice": "an outbox row ended after it had ended",
        "outbox_id_reused": "an outbox holds one client_message_id twice",
        "chain_broken": "a row names a successor that does not exist or belongs to another row",
        "inbox_unknown": "a message was marked as seen but never received",
        "inbox_twice": "a message was received twice",
        "stores_disagree": "two stores contradict each other about a message",
        "bus_disagrees": "a bus record contradicts the envelope it contains",
        "bus_published_twice": "a message was published to a mailbox that already holds it",
        "bus_unknown": "a record refers to a bus message that never existed",
        "pinch_signature_invalid": "a Pinch confirm is not signed by its reader",
        "pinch_unknown": "a Pinch confirm names an envelope that was never accepted",
        "lake_altered": "rows of the lake differ from the committed rows",
        "store_altered": "records of a store differ from those that the lake committed",
        "store_lacks_records": "a store no longer has records that the lake committed",
        "lake_lacks_rows": "the lake holds fewer rows than its commits declare",
        "derived_differs": "a table above bronze differs from the one recomputed from bronze",
        "erasure_untrusted": "rows of the lake were erased by a node that is not a trusted publisher",
        "root_untrusted": "a root was published by a node that is not a trusted publisher",
        "store_damaged": "a store violates its own rules; see `posthouse relay check`",
    }
)


class Finding(NamedTuple):
    """One row of the table of findings."""

    code: str
    #: relay, bus, outbox, inbox or lake.
    store: str
    #: The epoch that contains it.
    epoch: str
    ref: str
    seq: int
    detail: str


#: The columns of Finding, for Spark.
SCHEMA = "code string, store string, epoch string, ref string, seq bigint, detail string"

LAST_AUDIT = "last_audit.json"
KEPT_FINDINGS = 20


class LastAudit(msgspec.Struct, frozen=True):
    """The result of a lake's newest audit: a file next to the lake, for programs that show it without Spark."""

    at_ns: int
    records: int
    events: int
    #: findings by code
    counts: Mapping[str, int]
    #: the first findings, at most KEPT_FINDINGS
    findings: Sequence[Finding]

    @property
    def total(self) -> int:
        """The number of all findings."""
        return sum(self.counts.values())


def save_last_audit(lake_directory: Path, result: LastAudit) -> None:
    """Keep the result of an audit that has just ended."""
    write_atomic(private_dir(lake_directory) / LAST_AUDIT, msgspec.json.encode(result))


def read_last_audit(lake_directory: Path) -> LastAudit | None:
    """Return the result of the newest audit; None if there was none, or this version cannot read its file."""
    try:
        return msgspec.json.decode((lake_directory / LAST_AUDIT).read_bytes(), type=LastAudit)
    except (OSError, msgspec.MsgspecError):
        return None
