-- The inbox: messages for this node, stored before they are confirmed at the relay.
-- position is the cursor of event streams and is never reused, hence AUTOINCREMENT. `bridge` is the state of a row in
-- the bridge to the host's bus. Times are wall nanoseconds.
-- If you change this table: 1. a new migration, 2. inbox.py, 3. docs/explain.

CREATE TABLE inbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    client_message_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    mesh TEXT NOT NULL,
    topic TEXT,
    sender TEXT NOT NULL,
    sender_name TEXT,
    body TEXT,
    meta TEXT NOT NULL,
    received_at_ns INTEGER NOT NULL,
    reply_to_id TEXT,
    seen_at_ns INTEGER,
    priority TEXT NOT NULL,
    budget TEXT,
    undecryptable TEXT,
    bridge TEXT NOT NULL CHECK (bridge IN ('off', 'waiting', 'published', 'unmatched', 'refused')),
    UNIQUE (sender, client_message_id)
) STRICT;

CREATE INDEX inbox_by_message ON inbox (message_id);
CREATE INDEX inbox_unread ON inbox (position) WHERE seen_at_ns IS NULL;
CREATE INDEX inbox_by_topic ON inbox (topic, position) WHERE topic IS NOT NULL;
CREATE INDEX inbox_by_sender ON inbox (sender, position);
CREATE INDEX inbox_to_bridge ON inbox (position) WHERE bridge = 'waiting';
CREATE INDEX inbox_by_age ON inbox (received_at_ns);

-- One row; the daemon writes to it to check that the store is writable.
CREATE TABLE inbox_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    probed_at_ns INTEGER NOT NULL
) STRICT;

INSERT INTO inbox_state VALUES (1, 0);
