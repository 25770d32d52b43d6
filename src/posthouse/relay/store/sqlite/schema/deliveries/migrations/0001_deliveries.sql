-- Messages on their way: who has a mailbox, what was accepted, what waits for whom, and what is to be told to senders.
-- If you change what these tables hold: 1. a new migration, 2. deliver/check.py and deliver/replay.py, 3. the feed
-- view's next version, 4. docs/explain/messages.md.

-- One row per reader and mesh, and per sender; the counters decide and change with the rows they count.
CREATE TABLE mailboxes (
    mailbox INTEGER PRIMARY KEY,
    mesh TEXT NOT NULL,
    node TEXT NOT NULL,
    open_rows INTEGER NOT NULL DEFAULT 0 CHECK (open_rows >= 0),
    parked_rows INTEGER NOT NULL DEFAULT 0 CHECK (parked_rows >= 0),
    confirmation_ids INTEGER NOT NULL DEFAULT 0 CHECK (confirmation_ids >= 0),
    UNIQUE (mesh, node)
) STRICT;

CREATE INDEX mailboxes_waiting ON mailboxes (mailbox) WHERE open_rows > 0;

-- What tells a retry from another message; kept after the content is gone. seq is the message's.
CREATE TABLE message_records (
    seq INTEGER PRIMARY KEY,
    mesh TEXT NOT NULL,
    sender TEXT NOT NULL,
    client_message_id TEXT NOT NULL,
    id BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    destination_kind TEXT NOT NULL,
    destination_ref TEXT NOT NULL,
    first_seen_at_ns INTEGER NOT NULL,
    expires_at_ns INTEGER,
    history_available INTEGER NOT NULL CHECK (history_available IN (0, 1)),
    UNIQUE (mesh, sender, client_message_id)
) STRICT;

CREATE INDEX message_records_by_expiry ON message_records (expires_at_ns) WHERE expires_at_ns IS NOT NULL;

-- One row per message and reader. `seq` names the message; `position` is its place in the reader's queue: the seq of
-- the record that opened it, which a requeue moves to the tail. Open while closed_at_ns is NULL.
CREATE TABLE deliveries (
    seq INTEGER NOT NULL,
    mailbox INTEGER NOT NULL REFERENCES mailboxes (mailbox),
    source TEXT NOT NULL CHECK (source IN ('event', 'pinch')),
    id BLOB NOT NULL,
    sender INTEGER NOT NULL REFERENCES mailboxes (mailbox),
    position INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (
        state IN ('queued', 'sent', 'confirmed', 'rejected', 'dead', 'expired', 'purged', 'blocked')
    ),
    opened_at_ns INTEGER NOT NULL,
    -- NULL until it is sent for the first time, then for ever whether it came from the queue
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

CREATE INDEX deliveries_open ON deliveries (mailbox, position, opened_at_ns) WHERE closed_at_ns IS NULL;
CREATE INDEX deliveries_parked ON deliveries (mailbox, position) WHERE state IN ('rejected', 'dead');

-- Confirmations that their sender has not provably read yet; seq is that of the confirmation event.
CREATE TABLE waiting_confirmations (
    seq INTEGER PRIMARY KEY,
    mailbox INTEGER NOT NULL REFERENCES mailboxes (mailbox),
    ids INTEGER NOT NULL,
    items TEXT NOT NULL
) STRICT;

CREATE INDEX waiting_confirmations_by_mailbox ON waiting_confirmations (mailbox, seq);

CREATE TABLE mentions (
    node TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (node, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX mentions_by_seq ON mentions (seq);

-- Who gets a topic's messages depends on these tables. Whoever keeps an answer in memory compares the version, which
-- is random so that a value seen inside a transaction that was rolled back never comes again.
CREATE TABLE audience_versions (
    mesh TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER meshes_inserted AFTER INSERT ON meshes BEGIN
    INSERT INTO audience_versions VALUES (NEW.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER meshes_updated AFTER UPDATE ON meshes BEGIN
    INSERT INTO audience_versions VALUES (NEW.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER members_inserted AFTER INSERT ON members BEGIN
    INSERT INTO audience_versions VALUES (NEW.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER members_updated AFTER UPDATE ON members BEGIN
    INSERT INTO audience_versions VALUES (NEW.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER members_deleted AFTER DELETE ON members BEGIN
    INSERT INTO audience_versions VALUES (OLD.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER access_inserted AFTER INSERT ON access BEGIN
    INSERT INTO audience_versions VALUES (NEW.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER access_updated AFTER UPDATE ON access BEGIN
    INSERT INTO audience_versions VALUES (NEW.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER access_deleted AFTER DELETE ON access BEGIN
    INSERT INTO audience_versions VALUES (OLD.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER topics_inserted AFTER INSERT ON topics BEGIN
    INSERT INTO audience_versions VALUES (NEW.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER topics_deleted AFTER DELETE ON topics BEGIN
    INSERT INTO audience_versions VALUES (OLD.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER subscriptions_inserted AFTER INSERT ON subscriptions BEGIN
    INSERT INTO audience_versions VALUES (NEW.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;
CREATE TRIGGER subscriptions_deleted AFTER DELETE ON subscriptions BEGIN
    INSERT INTO audience_versions VALUES (OLD.mesh, random()) ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
END;

INSERT INTO audience_versions SELECT mesh, random() FROM meshes;

CREATE INDEX blocks_by_blocked ON blocks (mesh, blocked);

-- What happened to deliveries, for readers outside: the journal's records of accepted messages and of deliveries.
CREATE VIEW feed_deliveries_v1 AS
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE type = 'message.accepted' OR type GLOB 'delivery.*';
