"""Error codes of what the pipeline gives back: archive, sink, replay, publish."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit

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
