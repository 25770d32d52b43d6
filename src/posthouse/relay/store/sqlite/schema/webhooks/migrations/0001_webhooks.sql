-- Outgoing webhooks with their cursors, the events that their receivers refused, and incoming hooks.
-- `body` is the row as JSON; see posthouse.relay.wire.webhook_rows. It holds secrets.

CREATE TABLE webhooks (
    webhook_id TEXT PRIMARY KEY,
    mesh TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE parked_events (
    webhook_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (webhook_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE incoming_hooks (
    hook_id TEXT PRIMARY KEY,
    mesh TEXT NOT NULL,
    token_hash BLOB NOT NULL UNIQUE,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
