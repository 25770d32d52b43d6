"""Error codes of the pipeline: lake, runs, audit; and of archive, sink, replay and publish."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal, transient

PIPELINE: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "java_missing",
        501,
        "Spark needs Java {oldest} or newer: {seen}",
        "Run `pip install 'posthouse[pipeline]'`, which includes Java, or set JAVA_HOME to a newer one.",
        exit=Exit.USAGE,
    ),
    transient(
        "spark_stopped",
        503,
        "Java, which runs Spark, ended while the command ran: {reason}",
        "If the system killed it, free memory; if its heap was full, raise pipeline.driver_memory_mb. Then run the "
        "command again: a lake holds only what was committed.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "spark_not_started",
        503,
        "Spark did not start: {reason}",
        "See the output of Java above; JAVA_HOME names the Java to use.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "workers_failed",
        503,
        "the workers of Spark cannot run tasks: {reason}",
        "Workers need a Python of the same version with the libraries of 'posthouse[pipeline]'. Name it with "
        "--executor-python or PYSPARK_PYTHON; `docs/how-to/pipeline-cluster.md` shows how to pack one.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "source_invalid",
        400,
        "{url!r} is not a source: {reason}",
        "Name a store's file (relay.db, bus.db, outbox.db, inbox.db), its directory, or the URL of a relay.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "source_repeated",
        400,
        "{url} and {other} hold the same records: one is a copy of the other",
        "Name each store once. To compare a standby or a backup with the lake, audit it alone.",
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
        "{url} was written by a newer posthouse: {component} has version {found}, this one reads up to {known}",
        "Update posthouse where the pipeline runs.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "source_damaged",
        500,
        "{url} cannot be read: {reason}",
        "Check the store (`posthouse relay verify`, `posthouse doctor`); the lake is unchanged.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "source_not_shared",
        409,
        "the worker on {host} cannot read {url}: {reason}",
        "Nothing was committed. Name the relay by its URL: --source https://RELAY. Workers read a store's file only if "
        "all of them have it under the same path.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "source_went_back",
        409,
        "{url} is not the store that this lake has copied: {reason}",
        "Nothing was copied: an older file took its place. Put the newer file back, or begin a new epoch with "
        "`posthouse relay restore --in-place`, which keeps the two histories apart.",
        exit=Exit.BROKEN,
    ),
    transient(
        "source_behind",
        503,
        "{url} is a standby that lags behind the lake: {reason}",
        "Nothing was copied. Run it again when the standby has caught up; `posthouse pipeline run --every` does this "
        "by itself.",
    ),
    transient(
        "lake_busy",
        409,
        "another run is using the lake {path}",
        "Wait until it ends; a failed run releases the lake.",
        exit=Exit.REFUSED,
    ),
    ErrorSpec(
        "lake_empty",
        404,
        "the lake {path} has no table {table}",
        "Run `posthouse pipeline run` with a --source first.",
    ),
    ErrorSpec(
        "lake_unsupported",
        400,
        "{location!r} cannot hold a lake: {reason}",
        "Name a directory, or s3://BUCKET/PREFIX with the keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        exit=Exit.USAGE,
    ),
    transient(
        "lake_unreachable",
        503,
        "the lake {location} cannot be reached: {reason}",
        "Check that the bucket exists, that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are those of a user who may "
        "read and write it, and AWS_REGION or AWS_ENDPOINT_URL. Then run the command again.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "lake_outdated",
        409,
        "the table {table} of the lake {path} is older than its bronze tables",
        "Run `posthouse pipeline run` first: a run ended before it had brought every table up to date.",
    ),
    ErrorSpec(
        "lake_newer",
        409,
        "the table {table} of the lake was written by a newer posthouse: version {found}, this one knows {known}",
        "Update posthouse where the pipeline runs.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "lake_older",
        409,
        "an older posthouse wrote the table {table} of the lake",
        "Run `posthouse pipeline run` once: it builds the table again from the copied history.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "lake_files_missing",
        409,
        "the workers wrote to {path}, but this machine sees {found} of {expected} there",
        "Nothing was committed. The workers of a cluster must write to the same lake as the driver: put it on a disk "
        "that all of them share, or run with a local master.",
        exit=Exit.BROKEN,
    ),
    fatal(
        "lake_damaged",
        500,
        "the table {table} of the lake cannot be read: {reason}",
        "Nothing was changed. Restore the lake from a backup; a derived table can be deleted and is rebuilt.",
    ),
    ErrorSpec(
        "session_not_classic",
        400,
        "queries need a classic Spark session, not Spark Connect",
        "Give --master local[*] or the URL of a cluster. The guard of queries reads the parsed query in the JVM, which "
        "a client of Spark Connect does not have. run and audit work over Connect.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "query_refused",
        403,
        "a query only reads tables of the lake: {reason}",
        "Use SELECT, WITH, VALUES, DESCRIBE or EXPLAIN over the tables that SHOW TABLES lists; for anything else use "
        "a Spark session of your own: `posthouse pipeline shell`.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "query_failed",
        400,
        "Spark rejects the query: {reason}",
        "`posthouse pipeline query 'SHOW TABLES'` lists the tables, `DESCRIBE name` their columns.",
        exit=Exit.USAGE,
    ),
)
GIVING: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "archive_unknown_history",
        409,
        "the lake {path} has no records of this relay's epoch {epoch}",
        "Nothing was deleted. First run `posthouse pipeline run` with this relay as a --source.",
    ),
    ErrorSpec(
        "archive_differs",
        409,
        "the records {from_seq}..{to_seq} differ between the lake {path} and the relay",
        "None of them was deleted. `posthouse pipeline audit` shows which side was changed.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "sink_option_invalid",
        400,
        "the sink option {option} is invalid: {reason}",
        "Options are relay, run_id, kind, mesh, key_file, key_column; docs/how-to/pipeline-replay.md shows them.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "sink_rows_invalid",
        400,
        "the rows cannot be sent: {reason}",
        "Nothing was sent. The columns are row_key, to, body and optionally meta, reply_to, tags.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "sink_refused",
        409,
        "{refused} of {rows} rows were refused; reason of the first: {reason}",
        "Accepted rows stay accepted. Remove the cause, then write again with the same run id.",
    ),
    ErrorSpec(
        "sink_failed",
        502,
        "the rows could not be sent to the relay: {reason}",
        "Write again with the same run id: rows that arrived are not sent twice.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "replay_target_invalid",
        400,
        "{to!r} is not a replay target: {reason}",
        "Give #TOPIC for a topic of the mesh, or the subject of an endpoint on this host's bus.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "replay_cursor_differs",
        409,
        "the replay {name!r} was started with other options: {field} was {was!r}",
        "Use the same --where, --to and --source table, or another --name.",
        exit=Exit.USAGE,
    ),
)
