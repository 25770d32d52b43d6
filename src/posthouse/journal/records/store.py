"""Records of any store: snapshots for pruning, settings, refusals."""

from __future__ import annotations

from posthouse.journal.records.shape import RecordType

STORE = (
    RecordType(
        "journal.snapshot",
        "the last seq that pruning may remove below it",
        {
            "through_seq": "the prefix this snapshot stands for, always",
            "state": "what replay starts from: locks, members, counters, open deliveries; always",
        },
    ),
    RecordType("config.changed", "the name of what changed", {"changes": "the new values by setting, always"}),
    # Aggregated: a row for each refusal would be a way to fill the disk.
    RecordType(
        "refused",
        "the error code",
        {
            "code": "the error code, always",
            "key": "whose requests were refused, always",
            "minute": "the Unix minute, always",
            "count": "how many in that minute, always",
        },
    ),
)
