-- The agent that sent a message is part of what identifies it: two agents of one host may use the same
-- client_message_id. The agent that it is for completes its destination, which outlives its content.
ALTER TABLE message_records RENAME TO former_message_records;

CREATE TABLE message_records (
    seq INTEGER PRIMARY KEY,
    sender INTEGER NOT NULL,
    -- '' for a message of the host itself
    from_agent TEXT NOT NULL DEFAULT '',
    client_message_id TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    topic TEXT,
    -- '' for a topic, and for the default inbox of the recipient
    to_agent TEXT NOT NULL DEFAULT '',
    first_seen_at_ns INTEGER NOT NULL,
    expires_at_ns INTEGER,
    history_available INTEGER NOT NULL DEFAULT 1 CHECK (history_available IN (0, 1)),
    UNIQUE (sender, client_message_id, from_agent)
) STRICT;

INSERT INTO message_records (
    seq, sender, client_message_id, fingerprint, topic, first_seen_at_ns, expires_at_ns, history_available)
SELECT seq, sender, client_message_id, fingerprint, topic, first_seen_at_ns, expires_at_ns, history_available
FROM former_message_records ORDER BY seq;

DROP TABLE former_message_records;

-- A message with a from tag that was accepted before has its record under '', so that only its id finds it.
UPDATE swept_records SET first_seen_through_ns = max(first_seen_through_ns, (SELECT coalesce(max(at_ns), 0) FROM journal));
