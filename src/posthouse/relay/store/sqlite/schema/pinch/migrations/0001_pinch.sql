-- Pinch envelopes, opaque as they came. Their deliveries are rows of `deliveries` with the source pinch, in the mesh pinch.
-- If you change what this table holds: 1. a new migration, 2. pinch/check.py, 3. docs/explain/pinch.md.

CREATE TABLE pinch_envelopes (
    -- that of its pinch.accepted record, and of its delivery
    seq INTEGER PRIMARY KEY,
    -- that of its delivery; posthouse.model.pinch.delivery says how it is made
    id BLOB NOT NULL,
    sender INTEGER NOT NULL REFERENCES mailboxes (mailbox),
    -- as on the wire; empty for an envelope that has none
    message_id BLOB NOT NULL,
    message_type INTEGER NOT NULL,
    accepted_at_ns INTEGER NOT NULL,
    -- NULL once its delivery has ended
    envelope BLOB
) STRICT;

CREATE INDEX pinch_envelopes_by_message ON pinch_envelopes (message_id, sender, seq) WHERE message_id != x'';
CREATE INDEX pinch_envelopes_by_age ON pinch_envelopes (accepted_at_ns);
CREATE INDEX pinch_envelopes_full ON pinch_envelopes (seq) WHERE envelope IS NOT NULL;
