"""Records of locks: replaying them from the last snapshot gives the table of locks.

boot_ns values compare only within the run (`run_id`) that wrote them; across runs seq is the order.
"""

from __future__ import annotations

from posthouse.journal.records.shape import RecordType

_GRANT = {
    "owner": "the node id of the holder, always",
    "token": "the fencing token, always",
    "lease_ms": "the length of the lease, always",
    "run_id": "the run of the relay that decided, always",
    "granted_boot_ns": "boot time of the grant, always",
    "deadline_boot_ns": "boot time at which the lease ends, always",
}
_REQUEST = {"request_id": "the caller's id of the request", "wait_ms": "how long the caller waited"}

LOCKS = (
    RecordType(
        "lock.run_started",
        "the run id",
        {
            "run_id": "the run that starts, always",
            "boot_id": "the boot it runs in, always",
            "boot_ns": "boot time of the start, always",
            "reopened": "how many leases, all that were not released, got their full length again, always",
            "token_leap": "what was added to every token, because the store had been restored",
        },
    ),
    RecordType("lock.acquired", "the resource", _GRANT | _REQUEST),
    RecordType("lock.renewed", "the resource", _GRANT),
    RecordType(
        "lock.released",
        "the resource",
        {
            "owner": "the node id of the former holder, always",
            "token": "the fencing token it held, always",
            "run_id": "the run of the relay that decided, always",
            "boot_ns": "boot time of the release, always",
        },
    ),
    RecordType(
        "lock.taken_over",
        "the resource",
        _GRANT
        | _REQUEST
        | {
            "former_owner": "whose lease was over, always",
            "former_token": "the token it held, always",
            "former_deadline_boot_ns": "boot time at which its lease ended, always",
        },
    ),
)
