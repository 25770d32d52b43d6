-- Outgoing webhooks with their cursors, the events that their receivers refused, and incoming hooks.
-- `body` is the row as JSON; see posthouse.relay.wire.webhook_rows. It holds secrets.

CREATE TABLE webhooks (
    webhook_id text COLLATE "C" PRIMARY KEY,
    mesh text COLLATE "C" NOT NULL,
    body text NOT NULL
);

CREATE TABLE parked_events (
    webhook_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (webhook_id, seq)
);

CREATE TABLE incoming_hooks (
    hook_id text COLLATE "C" PRIMARY KEY,
    mesh text COLLATE "C" NOT NULL,
    token_hash bytea NOT NULL UNIQUE,
    body text NOT NULL
);
