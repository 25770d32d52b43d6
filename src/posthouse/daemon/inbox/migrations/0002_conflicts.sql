-- A message under a client_message_id that its sender has used for another message is kept beside it:
-- `conflicts_with` is the inbox id of the first one. SQLite cannot drop a UNIQUE constraint, so the table is copied;
-- positions stay, and the sequence with them.

CREATE TABLE inbox_with_conflicts (
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
    conflicts_with TEXT,
    UNIQUE (sender, client_message_id, message_id)
) STRICT;

INSERT INTO inbox_with_conflicts
SELECT position, id, client_message_id, message_id, mesh, topic, sender, sender_name, body, meta, received_at_ns,
       reply_to_id, seen_at_ns, priority, budget, undecryptable, bridge, NULL
FROM inbox;

UPDATE sqlite_sequence SET seq = (SELECT seq FROM sqlite_sequence WHERE name = 'inbox')
WHERE name = 'inbox_with_conflicts' AND EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'inbox');

INSERT INTO sqlite_sequence (name, seq)
SELECT 'inbox_with_conflicts', seq FROM sqlite_sequence
WHERE name = 'inbox' AND NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'inbox_with_conflicts');

DROP TABLE inbox;
ALTER TABLE inbox_with_conflicts RENAME TO inbox;

CREATE INDEX inbox_by_message ON inbox (message_id);
CREATE INDEX inbox_unread ON inbox (position) WHERE seen_at_ns IS NULL;
CREATE INDEX inbox_by_topic ON inbox (topic, position) WHERE topic IS NOT NULL;
CREATE INDEX inbox_by_sender ON inbox (sender, position);
CREATE INDEX inbox_to_bridge ON inbox (position) WHERE bridge = 'waiting';
CREATE INDEX inbox_by_age ON inbox (received_at_ns);
