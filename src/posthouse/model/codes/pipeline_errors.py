"""Error codes of the pipeline: lake, runs, audit; and of archive, sink, replay and publish."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal, transient

PIPELINE: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "java_missing",
        501,
        "Spark needs Java {oldest} or newer: {seen}",
        "Run `pip install 'posthouse[pipeline]'`, which brings one, or let JAVA_HOME name a newer one.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "spark_not_started",
        503,
        "Spark did not start: {reason}",
        "Look at what Java wrote above; JAVA_HOME names the one to use.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "source_invalid",
        400,
        "{url!r} is no source: {reason}",
        "Name a store's file (relay.db, index.db, outbox.db, inbox.db), its directory, or the URL of a relay.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "feed_invalid",
        400,
        "{url} has no feed {feed!r}",
        "Feeds are: {feeds}.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "source_newer",
        409,
        "{url} was written by a newer posthouse: {component} is at {found}, this one reads up to {known}",
        "Update posthouse where the pipeline runs.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "source_damaged",
        500,
        "{url} cannot be read: {reason}",
        "Check the store (`posthouse relay verify`, `posthouse doctor`); the lake keeps what it has.",
        exit=Exit.BROKEN,
    ),
    transient(
        "lake_busy",
        409,
        "another run works on the lake {path}",
        "Wait for it to end; a run that failed gives the lake back by itself.",
        exit=Exit.REFUSED,
    ),
    ErrorSpec(
        "lake_empty",
        404,
        "the lake {path} has no table {table}",
        "Run `posthouse pipeline run` with a --source first.",
    ),
    ErrorSpec(
        "lake_newer",
        409,
        "the table {table} of the lake was written by a newer posthouse: version {found}, this one knows {known}",
        "Update posthouse where the pipeline runs.",
        exit=Exit.BROKEN,
    ),
    fatal(
        "lake_damaged",
        500,
        "the table {table} of the lake cannot be read: {reason}",
        "Nothing was changed. Restore the lake from a backup; a derived table may be deleted and is rebuilt.",
    ),
    ErrorSpec(
        "query_failed",
        400,
        "Spark refuses the query: {reason}",
        "`posthouse pipeline query 'SHOW TABLES'` lists the tables, `DESCRIBE name` their columns.",
        exit=Exit.USAGE,
    ),
)
GIVING: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "archive_unknown_history",
        409,
        "the lake {path} knows nothing of the history {epoch} that this relay has",
        "Run `posthouse pipeline run` with this relay as a --source first; nothing was deleted.",
    ),
    ErrorSpec(
        "archive_differs",
        409,
        "what the lake {path} holds of {from_seq}..{to_seq} is not what the relay has",
        "Nothing of it was deleted. `posthouse pipeline audit` tells which of the two was changed.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "sink_option_invalid",
        400,
        "the option {option} of the sink: {reason}",
        "Options are relay, run_id, kind, mesh, key_file, key_column; docs/how-to/pipeline-replay.md shows them.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "sink_rows_invalid",
        400,
        "the rows cannot be sent: {reason}",
        "Nothing was sent. The columns are row_key, to, body and, where wanted, meta, reply_to, tags.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "sink_refused",
        409,
        "{refused} of {rows} rows were refused, the first one because of {reason}",
        "Those that were accepted stay so: after the cause is gone, write with the same run id again.",
    ),
    ErrorSpec(
        "sink_failed",
        502,
        "the rows could not be given to the relay: {reason}",
        "Write with the same run id again: what arrived is not sent twice.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "replay_target_invalid",
        400,
        "{to!r} is nowhere to replay to: {reason}",
        "Give #TOPIC for a topic of the mesh, or a subject that an endpoint of the bus of this host takes.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "replay_cursor_differs",
        409,
        "the replay {name!r} was begun with other terms: {field} was {was!r}",
        "Give it the same --where, --to and --source table, or another --name.",
        exit=Exit.USAGE,
    ),
)
