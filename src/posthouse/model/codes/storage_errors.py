"""Error codes of the stores: SQLite databases, the journal and its cursors, backup and restore."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal, transient

STORAGE: tuple[ErrorSpec, ...] = (
    transient(
        "store_busy",
        503,
        "the store has {items} items of {bytes} bytes waiting, its bound",
        "Retry after a moment; the caller is faster than the disk.",
    ),
    transient(
        "store_full",
        507,
        "the store could not be written: {reason}; nothing of this request was stored",
        "Free space on the disk of the data directory; writing resumes by itself.",
    ),
    transient(
        "store_locked",
        503,
        "another process kept {path} locked for too long",
        "Retry; if it persists, `posthouse doctor` shows who holds the store.",
    ),
    transient(
        "store_read_timeout",
        503,
        "a read took longer than {seconds} s and was ended so that checkpoints can go on",
        "Ask for less at a time.",
    ),
    transient(
        "store_closed",
        503,
        "the store {path} is closed",
        "Open it again.",
    ),
    fatal(
        "store_failed",
        500,
        "the disk failed under {path}: {reason}",
        "Check the disk and the kernel log, then run `posthouse relay verify` or the verify of this store.",
    ),
    ErrorSpec(
        "store_schema_newer",
        500,
        "{path} has schema {component} version {found}; this posthouse knows {known}",
        "Install the posthouse that wrote it, or a newer one; the file was not touched.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_migration_failed",
        500,
        "{path} could not be brought to {component} version {number}: {reason}",
        "The store is at its old version and unharmed; install the former posthouse to use it, and report this.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_not_ours",
        500,
        "{path} is not a posthouse {expected} store: {reason}",
        "Check the path; the file was not touched.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_path_unsafe",
        500,
        "{path} is refused: {reason}",
        "Give a path whose directory belongs to you and that is no symbolic link.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_in_use",
        409,
        "{path} is open in another process",
        "Stop the process that uses it first, then run the command again.",
    ),
    ErrorSpec(
        "store_half_restored",
        500,
        "a restore of {path} did not finish",
        "Run the same restore again; it starts over from the backup.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_corrupt",
        500,
        "{path} failed its check: {reason}",
        "Restore the newest backup that verifies.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "backup_exists",
        409,
        "{path} exists already",
        "Choose another file name; backups are never overwritten.",
    ),
    ErrorSpec(
        "cursor_invalid",
        400,
        "{cursor!r} is not a cursor of this store",
        "Use a cursor exactly as a former answer gave it, or none to start over.",
    ),
    ErrorSpec(
        "cursor_reset",
        409,
        "the store was restored since this cursor was given; its history forked after seq {fork_seq}",
        "Start again from `cursor`; what you saw above the fork may not exist any more.",
    ),
    ErrorSpec(
        "cursor_pruned",
        410,
        "the history before seq {oldest_seq} has been pruned from this store",
        "Start again from `cursor`; older history is in the lake.",
    ),
    ErrorSpec(
        "digest_mismatch",
        409,
        "the rows {from_seq}..{to_seq} have digest {actual}, not the one given",
        "Read the range again and compare; nothing was deleted.",
    ),
)
