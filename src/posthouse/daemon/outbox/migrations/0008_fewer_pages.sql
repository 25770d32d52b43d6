-- A new row changes few pages: each is a frame of the write-ahead log, and a lone sender waits for them. Only rows that
-- have left the state 'pending' are in the indexes by id, event and status; a pending one is found in outbox_pending,
-- which has its ids, too. So `id` is no longer UNIQUE: it has 80 random bits. The counters leave out the rows after
-- `counted_through`; all of these were pending when they were inserted.
-- SQLite cannot drop a UNIQUE constraint, so the table is copied; positions stay.

CREATE TABLE outbox_of_few_pages (
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    from_agent TEXT NOT NULL DEFAULT '',
    client_message_id TEXT NOT NULL,
    -- before the event: a large one is on pages of its own, which reading the size must not touch
    payload_bytes INTEGER NOT NULL,
    request_fingerprint BLOB NOT NULL,
    event_id TEXT NOT NULL,
    event BLOB,
    destination TEXT NOT NULL,
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
    own_post TEXT NOT NULL DEFAULT 'none' CHECK (own_post IN ('none', 'waiting', 'given')),
    confirmed_at_ns INTEGER,
    read_at_ns INTEGER,
    rejected_at_ns INTEGER,
    reject_reason TEXT,
    reply_to_id TEXT,
    not_queued TEXT,
    UNIQUE (client_message_id, from_agent)
) STRICT;

INSERT INTO outbox_of_few_pages (position, id, from_agent, client_message_id, payload_bytes, request_fingerprint,
                                 event_id, event, destination, to_agent, enqueued_at_ns, attempts, next_attempt_at_ns,
                                 status, last_error, delivered_at_ns, broker_message_id, history_id, aborted_at_ns,
                                 aborted_by, superseded_by, own_post, confirmed_at_ns, read_at_ns, rejected_at_ns,
                                 reject_reason, reply_to_id, not_queued)
SELECT position, id, from_agent, client_message_id, payload_bytes, request_fingerprint, event_id, event, destination,
       to_agent, enqueued_at_ns, attempts, next_attempt_at_ns, status, last_error, delivered_at_ns, broker_message_id,
       history_id, aborted_at_ns, aborted_by, superseded_by, own_post, confirmed_at_ns, read_at_ns, rejected_at_ns,
       reject_reason, reply_to_id, not_queued
FROM outbox;

DROP TABLE outbox;
ALTER TABLE outbox_of_few_pages RENAME TO outbox;

CREATE INDEX outbox_pending ON outbox (destination, position, id, event_id) WHERE status = 'pending';
CREATE INDEX outbox_by_id ON outbox (id) WHERE status <> 'pending';
CREATE INDEX outbox_by_event ON outbox (event_id) WHERE status <> 'pending';
CREATE INDEX outbox_by_status ON outbox (status, position) WHERE status <> 'pending';
CREATE INDEX outbox_by_first_id ON outbox (broker_message_id) WHERE broker_message_id <> event_id;
CREATE INDEX outbox_by_successor ON outbox (superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX outbox_by_reply ON outbox (reply_to_id) WHERE reply_to_id IS NOT NULL;
CREATE INDEX outbox_own_posts ON outbox (history_id) WHERE own_post = 'waiting';

ALTER TABLE outbox_state ADD COLUMN counted_through INTEGER NOT NULL DEFAULT 0;
UPDATE outbox_state SET counted_through = coalesce((SELECT max(position) FROM outbox), 0);
