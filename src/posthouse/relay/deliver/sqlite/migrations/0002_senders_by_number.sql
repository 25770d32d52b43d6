-- Records name their sender by its mailbox, which says the mesh too, and leave the id to the event: a third of the bytes
-- in the tree that every message enters by its key.
INSERT INTO mailboxes (mesh, node) SELECT DISTINCT mesh, sender FROM message_records WHERE true ON CONFLICT DO NOTHING;

ALTER TABLE message_records RENAME TO former_message_records;

CREATE TABLE message_records (
    seq INTEGER PRIMARY KEY,
    -- its mailbox
    sender INTEGER NOT NULL,
    client_message_id TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    destination_kind TEXT NOT NULL,
    destination_ref TEXT NOT NULL,
    first_seen_at_ns INTEGER NOT NULL,
    expires_at_ns INTEGER,
    history_available INTEGER NOT NULL CHECK (history_available IN (0, 1)),
    UNIQUE (sender, client_message_id)
) STRICT;

INSERT INTO message_records
SELECT r.seq, m.mailbox, r.client_message_id, r.fingerprint, r.destination_kind, r.destination_ref, r.first_seen_at_ns,
    r.expires_at_ns, r.history_available
FROM former_message_records AS r JOIN mailboxes AS m ON m.mesh = r.mesh AND m.node = r.sender ORDER BY r.seq;

DROP TABLE former_message_records;

CREATE INDEX message_records_by_expiry ON message_records (expires_at_ns) WHERE expires_at_ns IS NOT NULL;
