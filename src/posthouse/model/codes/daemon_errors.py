"""Error codes of the host daemon: startup, its local interface, outbox and inbox."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal, transient

_LIST = "`posthouse daemon outbox list` shows the rows and their states."

_STARTING: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "identity_lost",
        409,
        "{directory} was used with the key of {node}, and keypair.json is gone",
        "Put keypair.json back, or restore a backup with `posthouse daemon restore`. `posthouse daemon remint` makes a "
        "new identity, which has to join the mesh again.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "identity_mismatch",
        409,
        "{directory} belongs to {expected}, not to {found}",
        "A directory belongs to one mesh and one key: put its own files back, or use another directory.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "backup_unreadable",
        400,
        "{path} cannot be restored: {reason}",
        "Give the file that `posthouse daemon backup` wrote, and its passphrase.",
    ),
    ErrorSpec(
        "restore_unfinished",
        409,
        "a restore into {directory} was interrupted",
        "Run `posthouse daemon restore FILE` again: it puts everything in place.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "identity_is_persistent",
        409,
        "{directory} has a persistent identity, which an ephemeral daemon or a restore must not touch",
        "Use another directory with --dir, or start without --ephemeral.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "daemon_has_it",
        409,
        "the daemon in {directory} receives the messages of this node; a second reader would end its connection",
        "Read them with `posthouse inbox`, or stop the daemon first with `posthouse daemon down`.",
    ),
    ErrorSpec(
        "mesh_not_served",
        404,
        "the daemon does not serve the mesh {mesh}; it serves: {served}",
        "Start it with `posthouse daemon up --mesh MESH`, or join it with `posthouse join`.",
    ),
    ErrorSpec(
        "daemon_running",
        409,
        "a daemon is already running in {directory}",
        "Use it, or stop it with `posthouse daemon down`.",
    ),
    ErrorSpec(
        "host_changed",
        409,
        "the identity in {directory} was made on another machine",
        "If you moved it here, run `posthouse daemon accept-host`; if you copied it, create a new identity with "
        "`posthouse daemon remint`.",
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
        "outbox.max_age_h is {max_age_h}, but the dedupe records of this relay allow at most {bound_h} hours",
        "Lower outbox.max_age_h, or let the relay keep its records longer: an older retry could arrive twice.",
    ),
    ErrorSpec(
        "feature_unavailable",
        409,
        "the relay does not offer {feature}",
        "Update the relay to a newer version.",
    ),
    ErrorSpec(
        "feature_param_invalid",
        409,
        "the relay offers {feature} with {param} = {value!r}, which this daemon cannot use",
        "Use a relay and a daemon of compatible versions.",
    ),
    ErrorSpec(
        "feature_param_below_floor",
        409,
        "the relay offers {feature} with {param} = {value!r}; at least {floor} is needed",
        "Ask the operator of the relay to raise it.",
    ),
    ErrorSpec(
        "remint_pending",
        409,
        "{rows} messages of the current identity are not sent yet",
        "Wait until they are sent, or abort them with --abort-pending.",
    ),
)

_LOCAL: tuple[ErrorSpec, ...] = (
    transient(
        "daemon_busy", 429, "the daemon is already handling {limit} requests, which is its limit", "Retry in a moment."
    ),
    transient(
        "too_many_streams", 429, "{limit} event streams are open, which is the limit", "Close one of them first."
    ),
    transient(
        "request_rate_exceeded",
        429,
        "the daemon accepts at most {rate} requests per second over TCP",
        "Retry after retry_after_s seconds, or use the Unix socket.",
    ),
    transient(
        "daemon_reconciling",
        503,
        "mesh {mesh} was restored from a backup and has not been compared with the relay yet",
        "The daemon accepts messages once it has reached the relay; `posthouse daemon status` shows the connection.",
    ),
    transient("daemon_stopping", 503, "the daemon is stopping", "Retry when it is running again."),
    transient(
        "insufficient_storage",
        507,
        "the outbox has no room: {used} of {capacity} bytes are used",
        "Free disk space, restore the connection to the relay so that the outbox drains, or raise outbox.max_bytes.",
    ),
    ErrorSpec(
        "local_token_missing",
        401,
        "requests over TCP need the daemon's local token",
        "Send it as `Authorization: Bearer TOKEN`; the file local_token in the daemon's directory holds it.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "token_scope_exceeded",
        403,
        "the token of this hook gives no access to {path}",
        "A hook's token may read the message of its event, and send. Use the local token for anything else.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "local_token_wrong",
        401,
        "the token is not the daemon's local token",
        "Read the file local_token in the daemon's directory again.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "token_in_query",
        400,
        "the token is in the URL, and URLs end up in logs and histories",
        "Send it as `Authorization: Bearer TOKEN`.",
    ),
    ErrorSpec(
        "peer_refused",
        403,
        "the socket belongs to another user",
        "Run your own daemon: each user has one.",
        exit=Exit.IDENTITY,
    ),
)

_ROWS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "recipient_ambiguous",
        409,
        "{to!r} names several members: {candidates}",
        "Give the full node id, or more of its digits.",
    ),
    ErrorSpec("outbox_row_unknown", 404, "the outbox has no message {id!r}", _LIST),
    ErrorSpec(
        "outbox_row_accepted",
        409,
        "the relay already has the message of the outbox row {id}; the row is done now",
        "Nothing needs to be sent again; `posthouse message show` shows how far the message has come.",
    ),
    ErrorSpec("outbox_row_state", 409, "the outbox row {id} is {status}; this change needs {allowed}", _LIST),
    ErrorSpec(
        "inbox_item_unknown", 404, "there is no message {id!r} in the inbox", "`posthouse inbox` lists the messages."
    ),
    ErrorSpec(
        "message_stale",
        409,
        "the message {id} was valid only until {valid_until}, so its text is withheld",
        "Ask its sender whether it still holds. `posthouse inbox show ID --confirm` shows the text anyway.",
    ),
    ErrorSpec(
        "id_ambiguous", 409, "{id!r} is the beginning of several message ids", "Give more digits of the id, or all 64."
    ),
    ErrorSpec(
        "budget_exceeded",
        409,
        "the message that this one replies to has used up its budget: {reason}",
        "To start a new conversation, send without reply_to_id.",
    ),
)

_AGENTS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "agent_name_invalid",
        400,
        "{name!r} is not the name of an agent",
        "A name has 1 to 32 characters: a-z, 0-9 and -, and does not begin with -.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "address_invalid",
        400,
        "{address!r} is not the address of an agent",
        "Write AGENT@HOST, such as claude@laptop.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "agent_unknown",
        404,
        "this host has no agent {name!r}",
        "`posthouse agent ls` lists the agents; `posthouse agent add {name}` adds this one.",
    ),
    ErrorSpec("agent_exists", 409, "this host already has an agent {name!r}", "Choose another name."),
    ErrorSpec(
        "agent_retired",
        409,
        "the agent {name!r} accepts no mail: {reason}",
        "Write to another agent or to the host itself; `posthouse agent add` on its host brings it back.",
    ),
    ErrorSpec(
        "agent_full",
        409,
        "the agent {name!r} has {limit} unread messages, which is the limit",
        "Wait until it has read some, or write to the host itself.",
    ),
    ErrorSpec(
        "recipient_agent_unknown",
        404,
        "{host} has no agent {agent!r}",
        "`posthouse peers` lists the hosts and their agents.",
    ),
    transient(
        "relay_too_old",
        503,
        "the relay does not offer {feature}, which {purpose} needs",
        "Update the relay. Agents of one host can write to each other without it.",
    ),
    ErrorSpec(
        "agents_full",
        409,
        "this host has {limit} agents, which is the limit",
        "Retire one that is no longer used with `posthouse agent retire NAME`.",
    ),
    ErrorSpec(
        "pause_invalid",
        400,
        "an agent cannot be paused until {until}",
        "A pause ends in the future and lasts at most {days} days.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "reservation_conflict",
        409,
        "{holder} has reserved {held} for {left_s} s more: {note}",
        "Work on other files, wait, or ask with `posthouse send {holder} ...`; `posthouse reserve` lists what is held.",
    ),
    ErrorSpec(
        "guard_failed",
        500,
        "the guard could not check the files: {reason}",
        "Set POSTHOUSE_GUARD=off to switch the guard off.",
    ),
    ErrorSpec(
        "reservation_path_invalid",
        400,
        "{path!r} is not an absolute path",
        "Give the full path, beginning with /.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "reservation_repo_unknown",
        400,
        "{path} is not in a git repository with a commit: {reason}",
        "Reserve it without --repo: that still keeps other agents on this host away from it.",
    ),
    ErrorSpec(
        "process_unknown",
        404,
        "there is no process {pid} on this machine",
        "Give the pid of a running process, or none.",
    ),
)

DAEMON = _STARTING + _LOCAL + _ROWS + _AGENTS
