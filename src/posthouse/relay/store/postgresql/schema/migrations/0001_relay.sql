-- The whole store of a relay: journal, events and what is derived from them, meshes, deliveries, Pinch envelopes, locks.
-- The tables say the same as those of SQLite. Names that may hold any text are bytea, because text refuses NUL.
-- If you change what these tables hold: 1. a new migration here and beside the SQLite ones, 2. the statements that read
-- it, 3. docs/explain/storage.md.

CREATE TABLE epochs (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    epoch text COLLATE "C" NOT NULL UNIQUE,
    parent_epoch text COLLATE "C",
    fork_seq bigint NOT NULL,
    started_at_ns bigint NOT NULL
);

-- The writer assigns seq under the advisory lock; no sequence, which would leave gaps after a rollback.
CREATE TABLE journal (
    seq bigint PRIMARY KEY,
    at_ns bigint NOT NULL,
    type text COLLATE "C" NOT NULL,
    mesh text COLLATE "C",
    actor text COLLATE "C",
    ref bytea,
    body text NOT NULL
);

-- One row that only pruning changes: a row that every group updated would bloat while a snapshot is open.
CREATE TABLE journal_state (
    id integer PRIMARY KEY CHECK (id = 1),
    pruned_through bigint NOT NULL,
    snapshot_seq bigint
);

INSERT INTO journal_state VALUES (1, 0, NULL);

-- One row per accepted event; seq is its record's in the journal. An event whose content is gone (expired or pruned)
-- keeps its row with raw NULL: its id must stay known, or the same signed bytes could be accepted again.
CREATE TABLE events (
    seq bigint PRIMARY KEY,
    id bytea NOT NULL UNIQUE,
    pubkey bytea NOT NULL,
    kind integer NOT NULL,
    created_at_ns bigint NOT NULL,
    mesh text COLLATE "C" NOT NULL,
    recipient bytea,
    expiration_s bigint,
    address bytea,
    raw bytea
);

CREATE INDEX events_by_expiration ON events (expiration_s) WHERE expiration_s IS NOT NULL AND raw IS NOT NULL;

-- Derived: what an event is found by (author, kind, both, mesh, tags, address).
CREATE TABLE event_terms (
    term bytea NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (term, seq)
);

-- Derived: the latest of each replaceable or addressable coordinate.
CREATE TABLE current_events (
    address bytea PRIMARY KEY,
    created_at_ns bigint NOT NULL,
    id bytea NOT NULL,
    event_seq bigint NOT NULL
);

-- Derived: events with a fence tag, by resource and token.
CREATE TABLE fenced_events (
    event_seq bigint PRIMARY KEY,
    mesh text COLLATE "C" NOT NULL,
    resource bytea NOT NULL,
    token bigint NOT NULL
);

CREATE INDEX fenced_events_by_token ON fenced_events (mesh, resource, token);

-- Events whose record is pruned, but which are still needed: each pruning checks them again.
CREATE TABLE kept_events (
    seq bigint PRIMARY KEY
);

CREATE TABLE meshes (
    mesh text COLLATE "C" PRIMARY KEY,
    is_open boolean NOT NULL,
    creator text COLLATE "C" NOT NULL,
    created_at_ns bigint NOT NULL
);

CREATE TABLE members (
    mesh text COLLATE "C" NOT NULL REFERENCES meshes (mesh),
    node text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    role text COLLATE "C" NOT NULL CHECK (role IN ('reader', 'member', 'admin')),
    PRIMARY KEY (mesh, node),
    UNIQUE (mesh, name)
);

CREATE TABLE access (
    mesh text COLLATE "C" NOT NULL REFERENCES meshes (mesh),
    node text COLLATE "C" NOT NULL,
    read text COLLATE "C" NOT NULL CHECK (read IN ('allow', 'deny')),
    write text COLLATE "C" NOT NULL CHECK (write IN ('allow', 'deny')),
    lock text COLLATE "C" NOT NULL CHECK (lock IN ('allow', 'deny')),
    PRIMARY KEY (mesh, node)
);

CREATE TABLE fence_rules (
    mesh text COLLATE "C" NOT NULL REFERENCES meshes (mesh),
    kind integer NOT NULL,
    d_prefix bytea NOT NULL,
    resource bytea NOT NULL,
    PRIMARY KEY (mesh, kind, d_prefix)
);

CREATE TABLE topics (
    mesh text COLLATE "C" NOT NULL REFERENCES meshes (mesh),
    topic text COLLATE "C" NOT NULL,
    creator text COLLATE "C" NOT NULL,
    PRIMARY KEY (mesh, topic)
);

CREATE TABLE subscriptions (
    mesh text COLLATE "C" NOT NULL REFERENCES meshes (mesh),
    node text COLLATE "C" NOT NULL,
    pattern text COLLATE "C" NOT NULL,
    PRIMARY KEY (mesh, node, pattern)
);

CREATE TABLE blocks (
    mesh text COLLATE "C" NOT NULL REFERENCES meshes (mesh),
    node text COLLATE "C" NOT NULL,
    blocked text COLLATE "C" NOT NULL,
    PRIMARY KEY (mesh, node, blocked)
);

CREATE INDEX blocks_by_blocked ON blocks (mesh, blocked);

-- A code is a secret that gives a membership: only its hash is kept.
CREATE TABLE invites (
    invite_id text COLLATE "C" PRIMARY KEY,
    code_hash bytea NOT NULL UNIQUE,
    mesh text COLLATE "C" NOT NULL REFERENCES meshes (mesh),
    role text COLLATE "C" NOT NULL CHECK (role IN ('reader', 'member', 'admin')),
    uses_left bigint NOT NULL CHECK (uses_left >= 0),
    expires_at_ns bigint NOT NULL,
    creator text COLLATE "C" NOT NULL
);

CREATE TABLE invite_uses (
    invite_id text COLLATE "C" NOT NULL REFERENCES invites (invite_id),
    node text COLLATE "C" NOT NULL,
    PRIMARY KEY (invite_id, node)
);

-- The audience of a topic depends on these tables. A cache of it compares the version, which is random so that a value
-- seen inside a transaction that was rolled back never comes again.
CREATE TABLE audience_versions (
    mesh text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL
);

CREATE FUNCTION change_audience() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audience_versions (mesh, version)
    VALUES (CASE WHEN TG_OP = 'DELETE' THEN OLD.mesh ELSE NEW.mesh END, (random() * 9e18)::bigint)
    ON CONFLICT (mesh) DO UPDATE SET version = excluded.version;
    RETURN NULL;
END $$;

CREATE TRIGGER audience_changed AFTER INSERT OR UPDATE ON meshes FOR EACH ROW EXECUTE FUNCTION change_audience();
CREATE TRIGGER audience_changed AFTER INSERT OR UPDATE OR DELETE ON members
FOR EACH ROW EXECUTE FUNCTION change_audience();
CREATE TRIGGER audience_changed AFTER INSERT OR UPDATE OR DELETE ON access
FOR EACH ROW EXECUTE FUNCTION change_audience();
CREATE TRIGGER audience_changed AFTER INSERT OR DELETE ON topics FOR EACH ROW EXECUTE FUNCTION change_audience();
CREATE TRIGGER audience_changed AFTER INSERT OR DELETE ON subscriptions FOR EACH ROW EXECUTE FUNCTION change_audience();
CREATE TRIGGER audience_changed AFTER INSERT OR DELETE ON blocks FOR EACH ROW EXECUTE FUNCTION change_audience();

-- One row per reader and mesh, and per sender; the counters decide and change with the rows they count.
CREATE TABLE mailboxes (
    mailbox bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    mesh text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    open_rows bigint NOT NULL DEFAULT 0 CHECK (open_rows >= 0),
    parked_rows bigint NOT NULL DEFAULT 0 CHECK (parked_rows >= 0),
    confirmation_ids bigint NOT NULL DEFAULT 0 CHECK (confirmation_ids >= 0),
    UNIQUE (mesh, node)
) WITH (fillfactor = 50);

-- What tells a retry from another message; kept after the content is gone. seq is the message's.
CREATE TABLE message_records (
    seq bigint PRIMARY KEY,
    sender bigint NOT NULL,
    from_agent text COLLATE "C" NOT NULL DEFAULT '',
    client_message_id text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    topic text COLLATE "C",
    to_agent text COLLATE "C" NOT NULL DEFAULT '',
    first_seen_at_ns bigint NOT NULL,
    expires_at_ns bigint,
    history_available boolean NOT NULL DEFAULT true,
    UNIQUE (sender, client_message_id, from_agent)
);

-- Records of messages that were first seen up to this time may have been swept; one row.
CREATE TABLE swept_records (
    first_seen_through_ns bigint NOT NULL
);

INSERT INTO swept_records VALUES (0);

-- One row per message and reader. `seq` names the message; `position` is its place in the reader's queue: the seq of
-- the record that opened it, which a requeue moves to the tail. Open while closed_at_ns is NULL.
CREATE TABLE deliveries (
    seq bigint NOT NULL,
    mailbox bigint NOT NULL,
    source text COLLATE "C" NOT NULL DEFAULT 'event' CHECK (source IN ('event', 'pinch')),
    id bytea NOT NULL,
    sender bigint NOT NULL,
    position bigint NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'queued' CHECK (
        state IN ('queued', 'sent', 'confirmed', 'rejected', 'dead', 'expired', 'purged', 'blocked')
    ),
    opened_at_ns bigint NOT NULL,
    -- NULL until it is sent for the first time, then for ever whether it came from the queue
    was_stored boolean,
    sends integer NOT NULL DEFAULT 0,
    timeouts integer NOT NULL DEFAULT 0,
    flaps integer NOT NULL DEFAULT 0,
    sent_at_ns bigint,
    closed_at_ns bigint,
    reason bytea,
    PRIMARY KEY (seq, mailbox),
    CHECK ((closed_at_ns IS NULL) = (state IN ('queued', 'sent')))
) WITH (fillfactor = 70);

CREATE INDEX deliveries_open ON deliveries (mailbox, position) WHERE closed_at_ns IS NULL;
CREATE INDEX deliveries_parked ON deliveries (mailbox, position) WHERE state IN ('rejected', 'dead');

-- What became of a direct message after its host confirmed it: the first receipt of a delivery.
CREATE TABLE receipts (
    seq bigint NOT NULL,
    mailbox bigint NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN ('read', 'rejected')),
    at_ms bigint NOT NULL,
    reason bytea,
    PRIMARY KEY (seq, mailbox)
);

-- Messages of a topic that a reader's full queue had no room for: the first and the last of them.
CREATE TABLE gaps (
    mailbox bigint NOT NULL,
    topic text COLLATE "C" NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    messages bigint NOT NULL,
    PRIMARY KEY (mailbox, topic)
);

-- Confirmations that their sender has not provably read yet; seq is that of the confirmation event.
CREATE TABLE waiting_confirmations (
    seq bigint PRIMARY KEY,
    mailbox bigint NOT NULL,
    ids bigint NOT NULL,
    items text NOT NULL
);

CREATE INDEX waiting_confirmations_by_mailbox ON waiting_confirmations (mailbox, seq);

CREATE TABLE mentions (
    node text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (node, seq)
);

CREATE INDEX mentions_by_seq ON mentions (seq);

-- Pinch envelopes, opaque as they came. Their deliveries are rows of `deliveries` with the source pinch.
CREATE TABLE pinch_envelopes (
    seq bigint PRIMARY KEY,
    id bytea NOT NULL,
    sender bigint NOT NULL,
    -- as on the wire; empty for an envelope that has none
    message_id bytea NOT NULL,
    message_type integer NOT NULL,
    accepted_at_ns bigint NOT NULL,
    -- NULL once its delivery has ended
    envelope bytea,
    -- the position its delivery had when it was read; a requeue moves the delivery, so that it is sent again
    read_position bigint
);

CREATE INDEX pinch_envelopes_by_message ON pinch_envelopes (message_id, sender, seq) WHERE message_id != ''::bytea;
CREATE INDEX pinch_envelopes_by_age ON pinch_envelopes (accepted_at_ns);
CREATE INDEX pinch_envelopes_full ON pinch_envelopes (seq) WHERE envelope IS NOT NULL;

-- One row per holder and resource; when the last lease of a name has ended, its row stays and shows the last token.
CREATE TABLE locks (
    mesh text COLLATE "C" NOT NULL,
    resource bytea NOT NULL,
    owner text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    token bigint NOT NULL CHECK (token > 0),
    lease_ms bigint NOT NULL,
    -- boot time, of meaning within one run
    deadline_boot_ns bigint NOT NULL,
    is_released boolean NOT NULL,
    is_tree boolean NOT NULL,
    is_shared boolean NOT NULL,
    PRIMARY KEY (mesh, resource, owner, session)
) WITH (fillfactor = 50);

CREATE INDEX locks_unreleased ON locks (mesh, resource) WHERE NOT is_released;

-- Granted request ids, oldest first by number; kept for a day.
CREATE TABLE lock_requests (
    request_seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_id text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    mesh text COLLATE "C" NOT NULL,
    resource bytea NOT NULL,
    lease_ms bigint NOT NULL,
    token bigint NOT NULL,
    expires_at_ns bigint NOT NULL,
    granted_at_ns bigint NOT NULL,
    parameters text NOT NULL,
    UNIQUE (request_id, owner, session, mesh, resource)
);

-- The token of the last fenced write of each coordinate under each resource: what a strict fence looks at.
CREATE TABLE fence_writes (
    address bytea NOT NULL,
    mesh text COLLATE "C" NOT NULL,
    resource bytea NOT NULL,
    token bigint NOT NULL,
    PRIMARY KEY (address, mesh, resource)
);

-- The run that decides now, or decided last; one row.
CREATE TABLE lock_run (
    one integer PRIMARY KEY CHECK (one = 1),
    run_id text COLLATE "C" NOT NULL,
    epoch text COLLATE "C" NOT NULL,
    boot_id text COLLATE "C" NOT NULL,
    boot_ns bigint NOT NULL
);

CREATE TABLE token_counter (
    one integer PRIMARY KEY CHECK (one = 1),
    token bigint NOT NULL CHECK (token >= 0)
) WITH (fillfactor = 10);

INSERT INTO token_counter VALUES (1, 0);
