-- The index of a bus: derived from journal and files, rebuilt at any time. Times are Unix milliseconds.
-- If you change what it holds: 1. a new migration, 2. feed.py and rebuild.py alike, 3. docs/explain/bus.md.

CREATE TABLE messages (
    id TEXT NOT NULL,
    endpoint_hash TEXT NOT NULL,
    subject TEXT NOT NULL,
    sender TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('new', 'cur', 'done', 'dlq')),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    ended_at INTEGER,
    PRIMARY KEY (id, endpoint_hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX messages_by_endpoint ON messages (endpoint_hash, status);
CREATE INDEX messages_by_subject ON messages (subject);

-- How far the journal has been taken in, in the transaction of the rows it led to.
CREATE TABLE place (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    epoch TEXT NOT NULL,
    seq INTEGER NOT NULL
) STRICT;
