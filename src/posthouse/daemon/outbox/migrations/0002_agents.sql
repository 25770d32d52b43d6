-- Every agent of the host has its own client_message_ids: from_agent is part of the key, '' for the host itself.
-- SQLite cannot drop a UNIQUE constraint, so the table is copied; positions stay.

CREATE TABLE outbox_of_agents (
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    from_agent TEXT NOT NULL DEFAULT '',
    client_message_id TEXT NOT NULL,
    request_fingerprint BLOB NOT NULL,
    event_id TEXT NOT NULL,
    event BLOB,
    destination TEXT NOT NULL,
    -- the recipient's agent of a direct message, '' for its default inbox
    to_agent TEXT NOT NULL DEFAULT '',
    enqueued_at_ns INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_attempt_at_ns INTEGER,
    status TEXT NOT NULL CHECK (status IN ('pending', 'inflight', 'done', 'dead', 'aborted')),
    last_error TEXT,
    delivered_at_ns INTEGER,
    broker_message_id TEXT,
    history_id INTEGER,
    aborted_at_ns INTEGER,
    aborted_by TEXT,
    superseded_by TEXT,
    payload_bytes INTEGER NOT NULL,
    UNIQUE (client_message_id, from_agent)
) STRICT;

INSERT INTO outbox_of_agents (position, id, client_message_id, request_fingerprint, event_id, event, destination,
                              enqueued_at_ns, attempts, next_attempt_at_ns, status, last_error, delivered_at_ns,
                              broker_message_id, history_id, aborted_at_ns, aborted_by, superseded_by, payload_bytes)
SELECT position, id, client_message_id, request_fingerprint, event_id, event, destination, enqueued_at_ns, attempts,
       next_attempt_at_ns, status, last_error, delivered_at_ns, broker_message_id, history_id, aborted_at_ns,
       aborted_by, superseded_by, payload_bytes
FROM outbox;

DROP TABLE outbox;
ALTER TABLE outbox_of_agents RENAME TO outbox;

CREATE INDEX outbox_open ON outbox (destination, position) WHERE status IN ('pending', 'inflight');
CREATE INDEX outbox_by_status ON outbox (status, position);
CREATE INDEX outbox_by_event ON outbox (event_id);
CREATE INDEX outbox_by_successor ON outbox (superseded_by) WHERE superseded_by IS NOT NULL;
