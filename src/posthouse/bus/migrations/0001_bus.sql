-- The authority of a bus: endpoints with their counters and breakers, open and stored mail, rate windows.
-- Message content is not here: it lies in the mailbox files, and in the journal.
-- If you change what these tables hold: 1. a new migration, 2. bus.sql, 3. docs/explain/bus.md.

CREATE TABLE bus_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    last_id TEXT,
    endpoints_version INTEGER NOT NULL,
    -- the boot whose files have been reconciled with the rows
    boot_id TEXT,
    -- the boot whose times the rate log holds
    rates_boot_id TEXT
) STRICT;
INSERT INTO bus_state VALUES (1, NULL, 0, NULL, NULL);

-- One row per Bus that is or was open; procs/<name> tells whether it lives.
CREATE TABLE instances (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- circuit is NULL while the breaker is as new. Endpoint 0 stands for unrouted/ and has no row.
CREATE TABLE endpoints (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    hash TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL UNIQUE,
    owner TEXT,
    registered_at TEXT NOT NULL,
    private_to INTEGER,
    depth INTEGER NOT NULL DEFAULT 0 CHECK (depth >= 0),
    last_id TEXT,
    served_by INTEGER,
    circuit TEXT,
    failures INTEGER NOT NULL DEFAULT 0,
    successes INTEGER NOT NULL DEFAULT 0,
    probes INTEGER NOT NULL DEFAULT 0,
    since_boot_ns INTEGER NOT NULL DEFAULT 0,
    boot_id TEXT NOT NULL DEFAULT ''
) STRICT;

-- A row from the reservation until the message has ended. state: 0 reserved, its file may not be there yet;
-- 1 stored; 2 refused, its dead letter may not be there yet. depth counts the rows in states 0 and 1.
CREATE TABLE mail (
    endpoint INTEGER NOT NULL,
    id TEXT NOT NULL,
    state INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    PRIMARY KEY (endpoint, id)
) STRICT, WITHOUT ROWID;

-- The sliding window log of each sender. A row stands for the publishes of one transaction; total is the running sum
-- of the sender's publishes, so that a window is counted by two look-ups however many rows it holds.
CREATE TABLE rate_log (
    sender TEXT NOT NULL,
    boot_ns INTEGER NOT NULL,
    count INTEGER NOT NULL,
    total INTEGER NOT NULL,
    PRIMARY KEY (sender, boot_ns)
) STRICT, WITHOUT ROWID;

-- in_reply_to looks a message up by its id.
CREATE INDEX journal_published ON journal (ref) WHERE type = 'bus.published';
