"""Error codes of the stores: SQLite databases, the journal and its cursors, backup and restore."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal, transient

STORAGE: tuple[ErrorSpec, ...] = (
    transient(
        "store_busy",
        503,
        "{items} items ({bytes} bytes) are waiting for the store, which is its limit",
        "Retry in a moment; writes arrive faster than the disk stores them.",
    ),
    transient(
        "store_full",
        507,
        "the store could not be written: {reason}; nothing of this request was stored",
        "Free space on the disk of the data directory; writing then resumes automatically.",
    ),
    transient(
        "store_locked",
        503,
        "another process held a lock on {path} for too long",
        "Retry; if it persists, `posthouse doctor` shows the process that holds the store.",
    ),
    transient(
        "store_read_timeout",
        503,
        "a read took longer than {seconds} s and was cancelled because it blocked checkpoints",
        "Request less data at a time.",
    ),
    transient(
        "store_closed",
        503,
        "the store {path} is closed",
        "Open it again.",
    ),
    transient(
        "store_unavailable",
        503,
        "the database {url} cannot be reached: {reason}",
        "Retry in a moment; the relay reconnects by itself. If it persists, check the PostgreSQL server.",
    ),
    transient(
        "relay_behind",
        503,
        "this relay does not know the last commits of the other relays of its store",
        "Ask another relay, or retry in a moment. If it persists, check this relay's connection to the database.",
    ),
    transient(
        "leader_unknown",
        503,
        "no relay of this store leads now, or the leader cannot be reached",
        "Retry in a moment: the relays choose a leader within seconds. Each relay needs the `relay.advertise` of the "
        "others to be reachable.",
    ),
    transient(
        "leader_lost",
        503,
        "the relay that decides about locks changed before it answered; the operation may have taken effect",
        "Repeat it; an acquire with the same request id is granted once.",
    ),
    fatal(
        "store_taken_over",
        500,
        "another relay has written to {url} while this one had lost its connection",
        "Run one relay on a database. This one has ended; start it again once the other one is stopped.",
    ),
    transient(
        "store_timeline_old",
        503,
        "{url} is on timeline {timeline}, but the store has been on timeline {seen}: it is a former primary",
        "Stop the former primary, or make it a standby of the new one; then the relay finds the right server.",
    ),
    fatal(
        "store_failed_over",
        500,
        "{url} is on another server now ({server}), which may lack what this relay has acknowledged",
        "Start the relay again: it begins a new epoch there, so that clients notice what is missing and send it again.",
    ),
    fatal(
        "store_failed",
        500,
        "the disk failed under {path}: {reason}",
        "Check the disk and the kernel log, then verify the store (`posthouse relay verify`, `posthouse doctor`).",
    ),
    fatal(
        "store_damaged",
        500,
        "{path} is damaged: {reason}",
        "Check the disk. `posthouse relay check` says what is damaged in the store of a relay; `posthouse doctor` "
        "checks the other stores.",
    ),
    ErrorSpec(
        "store_schema_newer",
        500,
        "{path} has version {found} of the schema {component}; this posthouse supports {known}",
        "The file was not changed. Install the version of posthouse that wrote it, or a newer one.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_migration_failed",
        500,
        "migration of {path} to {component} version {number} failed: {reason}",
        "The store is intact at its old version. Use it with the previous posthouse, and report this bug.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_not_ours",
        500,
        "{path} is not a posthouse {expected} store: {reason}",
        "The file was not changed. Check the path.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_path_unsafe",
        500,
        "{path} is refused: {reason}",
        "Give a path that is not a symbolic link, in a directory that belongs to you.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_unusable",
        500,
        "{path} cannot be used: {reason}",
        "Give a directory that this user may write to.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_url_invalid",
        400,
        "the URL of the store is invalid: {reason}",
        "Give postgresql://USER@HOST/DATABASE, or leave relay.store unset for a SQLite file in the data directory.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "store_driver_missing",
        500,
        "a store on PostgreSQL needs psycopg: {reason}",
        "Install it: pip install 'posthouse[postgresql]'.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_not_compactable",
        409,
        "this store cannot give space back while the relay runs",
        "An older SQLite store: stop the relay and run `posthouse relay compact --offline` once. PostgreSQL "
        "reuses free space by itself, and VACUUM FULL gives it back.",
    ),
    ErrorSpec(
        "store_on_server",
        409,
        "the store of this relay is the database {url}, not a file",
        "Use the tools of PostgreSQL: REINDEX DATABASE rebuilds its indexes, VACUUM FULL gives space back, "
        "pg_amcheck checks its pages.",
    ),
    ErrorSpec(
        "store_behind_pooler",
        500,
        "{url} is behind a pooler that shares sessions between transactions",
        "Give the address of the PostgreSQL server itself, or a pool in session mode.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_in_use",
        409,
        "{path} is open in another process",
        "Stop the process that uses it, then run the command again.",
    ),
    ErrorSpec(
        "store_moved",
        500,
        "{path} was moved to {target}",
        "Start the relay there: `posthouse relay up --store URL` for a database, without --store for a file. If the "
        "move was interrupted, run the same `posthouse relay migrate` again. To continue from this copy under a new "
        "epoch: `posthouse relay restore --in-place`.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "copy_differs",
        500,
        "the copy of the table {table} differs from its source: {copied} rows instead of {rows}, or other values",
        "Nothing was changed; the relay can start where it was. Report this bug.",
        exit=Exit.BROKEN,
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
        "store_missing",
        500,
        "{path} is missing, but {witness}: the relay has lost its store",
        "Restore a backup with `posthouse relay restore FILE`, or begin an empty store: `posthouse relay up --new`.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "relay_key_missing",
        500,
        "the key {key} is missing, but {path} holds the store of a relay: clients would not trust it with a new key",
        "Put the key back from a backup. If it is lost, run `posthouse keys new --key-file {key}`; then every client "
        "has to trust the relay again.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "relay_key_differs",
        409,
        "the relays of {url} have the key of {relay}, not that of {given}",
        "Give every relay of a store the same key: copy key.json of the first one into the data directory of this one. "
        "If that key is lost, stop all relays and start one with the new key and without relay.advertise.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "store_exists",
        409,
        "{path} already holds a store",
        "Start without --new. To begin an empty store, move this one away first.",
    ),
    ErrorSpec(
        "store_rolled_back",
        500,
        "{path} is {found}, but the relay had reached {reached}: it is an older copy",
        "Put the newest file back, or continue from this one with `posthouse relay restore --in-place`: it begins a "
        "new epoch, so that clients notice the loss.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "high_water_damaged",
        500,
        "the high-water mark {path} cannot be read: {reason}",
        "Run `posthouse relay restore --in-place`: it begins a new epoch and writes the mark again.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "high_water_unwritable",
        500,
        "the high-water mark {path} cannot be written: {reason}",
        "Mount or create the directory that `relay.high_water` names.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "backup_exists",
        409,
        "{path} already exists",
        "Choose another file name; backups are never overwritten.",
    ),
    ErrorSpec(
        "backup_invalid",
        422,
        "{path} is not a backup of a relay: {reason}",
        "Give a file that `posthouse relay backup` made.",
    ),
    ErrorSpec(
        "backup_key_differs",
        409,
        "the backup belongs to the relay {backup}, but {path} is the key of another relay",
        "Restore into an empty directory, or move key.json away if the relay should take the key of the backup.",
    ),
    ErrorSpec(
        "cursor_invalid",
        400,
        "{cursor!r} is not a cursor of this store",
        "Use a cursor exactly as an earlier response gave it, or none to start over.",
    ),
    ErrorSpec(
        "cursor_reset",
        409,
        "the store was restored after this cursor was issued; its history forked after seq {fork_seq}",
        "Continue from `cursor`; records you read above the fork may no longer exist.",
    ),
    ErrorSpec(
        "cursor_pruned",
        410,
        "this store has pruned its history before seq {oldest_seq}",
        "Continue from `cursor`; older history is in the lake.",
    ),
    ErrorSpec(
        "digest_mismatch",
        409,
        "the digest of the rows {from_seq}..{to_seq} differs from the given one",
        "Nothing was deleted. Read the range again and compare.",
    ),
)
