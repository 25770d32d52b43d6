"""Settings of the journal and the log, which every part has."""

from __future__ import annotations

from posthouse.model.limits import JOURNAL_KEEP_DAYS, JOURNAL_MAX_BYTES, MIB, SAFE_INTEGER_MAX
from posthouse.model.settings.setting import Setting

STORAGE: tuple[Setting, ...] = (
    Setting("journal.keep_days", int, JOURNAL_KEEP_DAYS, "Age up to which the journal is kept.", "days", 1, 36_500),
    Setting(
        "journal.max_bytes",
        int,
        JOURNAL_MAX_BYTES,
        "Size above which the journal is pruned before its age.",
        "bytes",
        MIB,
        SAFE_INTEGER_MAX,
    ),
    Setting("journal.lake", str, None, "Lake directory; when set, only what it has committed is pruned."),
    Setting("log.level", str, "info", "Least severity that is logged.", choices=("debug", "info", "warning", "error")),
    Setting(
        "log.format",
        str,
        "auto",
        "auto: text on a terminal, else JSON lines.",
        choices=("auto", "text", "json"),
    ),
)
