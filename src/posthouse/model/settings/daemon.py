"""Settings of the host daemon: its outbox and inbox, and what it does on another machine."""

from __future__ import annotations

from posthouse.model.limits import GB, MIB, SAFE_INTEGER_MAX
from posthouse.model.settings.setting import Setting

DAEMON: tuple[Setting, ...] = (
    Setting(
        "outbox.max_age_h",
        int,
        None,
        "How long a message may wait to be sent; without it 168, less if the relay remembers ids for a shorter time.",
        "hours",
        1,
        87_600,
    ),
    Setting("outbox.max_bytes", int, 5 * GB, "Size of the outbox.", "bytes", MIB, SAFE_INTEGER_MAX),
    Setting("inbox.keep_days", int, 30, "Age up to which the inbox keeps messages.", "days", 1, 36_500),
    Setting(
        "clone.policy",
        str,
        "refuse",
        "What a daemon does on another machine than its identity was made on.",
        choices=("refuse", "warn", "allow"),
    ),
    Setting("daemon.bridge", bool, True, "Carry messages between the mesh and the host's bus."),
)
