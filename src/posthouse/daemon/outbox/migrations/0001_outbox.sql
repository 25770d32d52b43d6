-- The outbox: messages accepted from local programs, until the relay has them and beyond.
-- Rows are never deleted: an id that was in the outbox stays taken. `event` is sealed and signed once; done rows lose
-- it after the retention time. Times are wall nanoseconds.
-- If you change these tables: 1. a new migration, 2. transitions.py, 3. recovery.py, 4. docs/explain.

CREATE TABLE outbox (
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    client_message_id TEXT NOT NULL UNIQUE,
    request_fingerprint BLOB NOT NULL,
    event_id TEXT NOT NULL,
    event BLOB,
    destination TEXT NOT NULL,
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
    payload_bytes INTEGER NOT NULL
) STRICT;

CREATE INDEX outbox_open ON outbox (destination, position) WHERE status IN ('pending', 'inflight');
CREATE INDEX outbox_by_status ON outbox (status, position);
CREATE INDEX outbox_by_event ON outbox (event_id);
CREATE INDEX outbox_by_successor ON outbox (superseded_by) WHERE superseded_by IS NOT NULL;

-- One row of counters, changed in the same transaction as the rows that they count.
CREATE TABLE outbox_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    pending INTEGER NOT NULL,
    inflight INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;

INSERT INTO outbox_state VALUES (1, 0, 0, 0);
