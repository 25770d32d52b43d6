-- Less work for every message that is accepted; what the tables say stays the same.

-- Records name their sender by its mailbox, which says the mesh too, leave id and recipient to the event, and are swept
-- in their own order: fewer bytes, and one tree less that every message enters.
INSERT INTO mailboxes (mesh, node) SELECT DISTINCT mesh, sender FROM message_records WHERE true ON CONFLICT DO NOTHING;

ALTER TABLE message_records RENAME TO former_message_records;

CREATE TABLE message_records (
    seq INTEGER PRIMARY KEY,
    -- its mailbox
    sender INTEGER NOT NULL,
    client_message_id TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    -- NULL for a direct message: its event says to whom
    topic TEXT,
    first_seen_at_ns INTEGER NOT NULL,
    expires_at_ns INTEGER,
    history_available INTEGER NOT NULL DEFAULT 1 CHECK (history_available IN (0, 1)),
    UNIQUE (sender, client_message_id)
) STRICT;

INSERT INTO message_records
SELECT r.seq, m.mailbox, r.client_message_id, r.fingerprint, iif(r.destination_kind = 'topic', r.destination_ref, NULL),
    r.first_seen_at_ns, r.expires_at_ns, r.history_available
FROM former_message_records AS r JOIN mailboxes AS m ON m.mesh = r.mesh AND m.node = r.sender ORDER BY r.seq;

DROP TABLE former_message_records;

-- A message that is younger than all records that were ever swept has its record or was never accepted, so nobody need
-- look for its id. What a store swept before this table was there is not known: that counts up to now.
CREATE TABLE swept_records (
    first_seen_through_ns INTEGER NOT NULL
) STRICT;

INSERT INTO swept_records SELECT coalesce(max(at_ns), 0) FROM journal;

-- As before, but for what rows of messages begin as, and how states are checked: for a longer list than two SQLite builds
-- a table with each statement.
ALTER TABLE deliveries RENAME TO former_deliveries;

CREATE TABLE deliveries (
    seq INTEGER NOT NULL,
    mailbox INTEGER NOT NULL REFERENCES mailboxes (mailbox),
    source TEXT NOT NULL DEFAULT 'event' CHECK (source IN ('event', 'pinch')),
    id BLOB NOT NULL,
    sender INTEGER NOT NULL REFERENCES mailboxes (mailbox),
    position INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued' CHECK (
        state = 'queued' OR state = 'sent' OR state = 'confirmed' OR state = 'rejected' OR state = 'dead'
        OR state = 'expired' OR state = 'purged' OR state = 'blocked'
    ),
    opened_at_ns INTEGER NOT NULL,
    was_stored INTEGER CHECK (was_stored IN (0, 1)),
    sends INTEGER NOT NULL DEFAULT 0,
    timeouts INTEGER NOT NULL DEFAULT 0,
    flaps INTEGER NOT NULL DEFAULT 0,
    sent_at_ns INTEGER,
    closed_at_ns INTEGER,
    reason TEXT,
    PRIMARY KEY (seq, mailbox),
    CHECK ((closed_at_ns IS NULL) = (state IN ('queued', 'sent')))
) STRICT, WITHOUT ROWID;

INSERT INTO deliveries SELECT * FROM former_deliveries ORDER BY seq, mailbox;

DROP TABLE former_deliveries;

-- Without opened_at_ns: what is queued later is opened later, so that the first row tells how old the others can be.
CREATE INDEX deliveries_open ON deliveries (mailbox, position) WHERE closed_at_ns IS NULL;
CREATE INDEX deliveries_parked ON deliveries (mailbox, position) WHERE state IN ('rejected', 'dead');

-- Blocks are part of what an audience is worked out from.
CREATE TRIGGER blocks_inserted AFTER INSERT ON blocks BEGIN
    UPDATE audience_versions SET version = random() WHERE mesh = NEW.mesh;
END;
CREATE TRIGGER blocks_deleted AFTER DELETE ON blocks BEGIN
    UPDATE audience_versions SET version = random() WHERE mesh = OLD.mesh;
END;

-- The few who ask which mailboxes are not empty can look at all of them.
DROP INDEX mailboxes_waiting;
