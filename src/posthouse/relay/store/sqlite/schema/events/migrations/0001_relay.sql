-- The relay's own tables: events and what is derived from them, meshes and what belongs to them.
-- If you change what these tables hold: 1. a new migration, 2. reindex.py and check.py for what is derived,
-- 3. the feed view's next version, 4. docs/explain/storage.md.

-- One row per accepted event; seq is its record's in the journal. An event whose content is gone (expired or pruned)
-- keeps its row with raw NULL: its id must stay known, or the same signed bytes could be accepted again.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    pubkey BLOB NOT NULL,
    kind INTEGER NOT NULL,
    created_at_ns INTEGER NOT NULL,
    mesh TEXT NOT NULL,
    recipient BLOB,
    expiration_s INTEGER,
    address BLOB,
    raw BLOB
) STRICT;

-- By the first eight bytes of the id: half the pages of whole ids, and every insert dirties a random one. Whoever looks
-- an id up compares both; ids that share eight bytes are as good as none, and only cost the comparison.
CREATE INDEX events_by_id ON events (substr(id, 1, 8));
CREATE INDEX events_by_expiration ON events (expiration_s) WHERE expiration_s IS NOT NULL AND raw IS NOT NULL;

-- Derived: what an event is found by (author, kind, both, mesh, tags, address), as posthouse.relay.store.terms spells
-- it: equal terms side by side in the order of seq, short values in the order of their length.
CREATE TABLE event_terms (
    term BLOB NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (term, seq)
) STRICT, WITHOUT ROWID;

-- Derived: the latest of each replaceable or addressable line.
CREATE TABLE current_events (
    address BLOB PRIMARY KEY,
    created_at_ns INTEGER NOT NULL,
    id BLOB NOT NULL,
    event_seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE meshes (
    mesh TEXT PRIMARY KEY,
    is_open INTEGER NOT NULL,
    creator TEXT NOT NULL,
    created_at_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE members (
    mesh TEXT NOT NULL REFERENCES meshes (mesh),
    node TEXT NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('reader', 'member', 'admin')),
    PRIMARY KEY (mesh, node),
    UNIQUE (mesh, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE access (
    mesh TEXT NOT NULL REFERENCES meshes (mesh),
    node TEXT NOT NULL,
    read TEXT NOT NULL CHECK (read IN ('allow', 'deny')),
    write TEXT NOT NULL CHECK (write IN ('allow', 'deny')),
    lock TEXT NOT NULL CHECK (lock IN ('allow', 'deny')),
    PRIMARY KEY (mesh, node)
) STRICT, WITHOUT ROWID;

CREATE TABLE topics (
    mesh TEXT NOT NULL REFERENCES meshes (mesh),
    topic TEXT NOT NULL,
    creator TEXT NOT NULL,
    PRIMARY KEY (mesh, topic)
) STRICT, WITHOUT ROWID;

CREATE TABLE subscriptions (
    mesh TEXT NOT NULL REFERENCES meshes (mesh),
    node TEXT NOT NULL,
    pattern TEXT NOT NULL,
    PRIMARY KEY (mesh, node, pattern)
) STRICT, WITHOUT ROWID;

CREATE TABLE blocks (
    mesh TEXT NOT NULL REFERENCES meshes (mesh),
    node TEXT NOT NULL,
    blocked TEXT NOT NULL,
    PRIMARY KEY (mesh, node, blocked)
) STRICT, WITHOUT ROWID;

-- A code is a secret that gives a membership: only its hash is kept.
CREATE TABLE invites (
    invite_id TEXT PRIMARY KEY,
    code_hash BLOB NOT NULL UNIQUE,
    mesh TEXT NOT NULL REFERENCES meshes (mesh),
    role TEXT NOT NULL CHECK (role IN ('reader', 'member', 'admin')),
    uses_left INTEGER NOT NULL CHECK (uses_left >= 0),
    expires_at_ns INTEGER NOT NULL,
    creator TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE invite_uses (
    invite_id TEXT NOT NULL REFERENCES invites (invite_id),
    node TEXT NOT NULL,
    PRIMARY KEY (invite_id, node)
) STRICT, WITHOUT ROWID;

-- Accepted events for readers outside: seq, at_ns (accepted), type, mesh, id and pubkey and recipient as on the wire,
-- kind, created_at_ns, expiration_s, event (the JSON as served; NULL once expired).
CREATE VIEW feed_events_v1 AS
SELECT
    journal.seq,
    journal.at_ns,
    journal.type,
    journal.mesh,
    journal.ref AS id,
    journal.actor AS pubkey,
    events.kind,
    events.created_at_ns,
    iif(events.recipient IS NULL, NULL, 'ed25519:' || lower(hex(events.recipient))) AS recipient,
    events.expiration_s,
    CAST(events.raw AS TEXT) AS event
FROM journal JOIN events ON events.seq = journal.seq
WHERE journal.type IN ('event.accepted', 'message.accepted', 'confirmation.accepted');
