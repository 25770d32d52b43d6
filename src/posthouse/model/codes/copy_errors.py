"""Error codes of followers and mirrors: copies of a relay's store, and of its events."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit

COPIES: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "follow_not_allowed",
        403,
        "{node} may not follow this relay",
        "Ask the operator of the relay to add it to relay.followers; a copy holds everything that the relay has.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "mirror_not_allowed",
        403,
        "{node} may not mirror the mesh {mesh}",
        "Ask the operator of the relay to add the node id, or NODE/MESH, to relay.mirrors.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec("mirror_refused", 409, "the event cannot be mirrored: {reason}", "No action is needed."),
    ErrorSpec(
        "comparison_too_large",
        413,
        "more than {limit} events match: too many for one comparison",
        "Compare a shorter period with since_ns and until_ns; `posthouse relay mirror` does this by itself.",
    ),
    ErrorSpec(
        "follow_unsupported",
        409,
        "the store of this relay is a PostgreSQL database",
        "Use the streaming replication of PostgreSQL instead; see docs/how-to/relay-postgresql.md.",
    ),
    ErrorSpec(
        "follow_restart",
        409,
        "the copy cannot continue: {reason}",
        "Make a new copy; `posthouse relay follow` does this by itself.",
    ),
    ErrorSpec(
        "copy_invalid",
        409,
        "the copy {path} cannot be used: {reason}",
        "Follow into an empty directory, or remove the copy: the next `posthouse relay follow` makes a new one.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "copy_of_another",
        409,
        "the copy {path} cannot follow this relay: {reason}",
        "Give the URL of the relay that was copied, or follow into another directory.",
    ),
    ErrorSpec(
        "copy_promoted",
        409,
        "the copy {path} is being promoted: it no longer follows",
        "Run `posthouse relay promote` again to complete it. To follow again, use another directory.",
    ),
    ErrorSpec(
        "relay_follows",
        409,
        "{path} is a copy that follows another relay: no relay can run on it",
        "If that relay is lost for good, stop it, run `posthouse relay promote` here, then `posthouse relay up`.",
    ),
    ErrorSpec(
        "leader_answers",
        409,
        "the relay at {leader} still answers: two relays would continue one history",
        "Stop it first. If it cannot be stopped and clients can no longer reach it, use --force.",
    ),
)
