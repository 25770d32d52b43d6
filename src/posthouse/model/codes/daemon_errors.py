"""Error codes of the host daemon: starting, its local interface, outbox and inbox."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal, transient

_LIST = "`posthouse daemon outbox list` shows the rows and their states."

_STARTING: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "daemon_running",
        409,
        "a daemon runs in {directory} already",
        "Use it, or end it with `posthouse daemon down`.",
    ),
    ErrorSpec(
        "host_changed",
        409,
        "the identity in {directory} was made on another machine",
        "If it was moved here, run `posthouse daemon accept-host`; if it was copied, `posthouse daemon remint` makes a "
        "new identity.",
        exit=Exit.IDENTITY,
    ),
    fatal(
        "outbox_corrupt",
        500,
        "the outbox {path} is damaged: {reason}",
        "Nothing was changed. Keep a copy of the directory, then run `posthouse daemon recover`.",
    ),
    ErrorSpec(
        "outbox_max_age_above_dedupe_window",
        409,
        "outbox.max_age_h is {max_age_h}; this relay remembers ids long enough for {bound_h} hours at most",
        "Lower outbox.max_age_h, or have the relay keep its records longer: an older retry could arrive twice.",
    ),
    ErrorSpec(
        "feature_unavailable",
        409,
        "the relay does not offer {feature}",
        "Use a relay of a newer version.",
    ),
    ErrorSpec(
        "feature_param_invalid",
        409,
        "the relay offers {feature} with {param} = {value!r}, which this daemon cannot use",
        "Use a relay of a version that fits.",
    ),
    ErrorSpec(
        "feature_param_below_floor",
        409,
        "the relay offers {feature} with {param} = {value!r}; at least {floor} is needed",
        "Have its operator raise it.",
    ),
    ErrorSpec(
        "remint_pending",
        409,
        "{rows} messages of the present identity are not sent yet",
        "Let them leave first, or give them up with --abort-pending.",
    ),
)

_LOCAL: tuple[ErrorSpec, ...] = (
    transient("daemon_busy", 429, "{limit} requests are being answered, the limit", "Send again in a moment."),
    transient("too_many_streams", 429, "{limit} event streams are open, the limit", "Close one of them first."),
    transient(
        "request_rate_exceeded",
        429,
        "more than {rate} requests per second come over TCP",
        "Send again after retry_after_s seconds, or use the Unix socket.",
    ),
    transient("daemon_stopping", 503, "the daemon is stopping", "Try again when it runs."),
    transient(
        "insufficient_storage",
        507,
        "the outbox has no room: {used} of {capacity} bytes are used",
        "Free space, let the relay be reached so that it drains, or raise outbox.max_bytes.",
    ),
    ErrorSpec(
        "local_token_missing",
        401,
        "requests over TCP need the daemon's local token",
        "Send it as `Authorization: Bearer TOKEN`; it is in local_token in the daemon's directory.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "local_token_wrong",
        401,
        "this is not the daemon's local token",
        "Read local_token in the daemon's directory again.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "token_in_query",
        400,
        "a token does not belong in an address: addresses are kept in logs and histories",
        "Send it as `Authorization: Bearer TOKEN`.",
    ),
    ErrorSpec("host_refused", 403, "the daemon is not {host!r}", "Use localhost, 127.0.0.1 or [::1]."),
    ErrorSpec("origin_refused", 403, "pages of {origin!r} may not use the daemon", "Use a program instead of a page."),
    ErrorSpec(
        "peer_refused",
        403,
        "the socket belongs to another user",
        "Every user runs a daemon of their own.",
        exit=Exit.IDENTITY,
    ),
)

_ROWS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "recipient_ambiguous",
        409,
        "{to!r} names several members: {candidates}",
        "Give the node id, or more of its digits.",
    ),
    ErrorSpec("outbox_row_unknown", 404, "there is no outbox row {id!r}", _LIST),
    ErrorSpec("outbox_row_state", 409, "the outbox row {id} is {status}; only {allowed} can be changed so", _LIST),
    ErrorSpec("inbox_item_unknown", 404, "there is no message {id!r} in the inbox", "`posthouse inbox` lists them."),
    ErrorSpec(
        "budget_exceeded",
        409,
        "the message it answers has used up its budget: {reason}",
        "Begin a new conversation without reply_to_id, if that is meant.",
    ),
)

DAEMON = _STARTING + _LOCAL + _ROWS
