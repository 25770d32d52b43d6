-- The journal of a store: facts in commit order, and the epochs that name its history.
-- If you change what these tables hold: 1. a new migration, 2. records.py, 3. the feed view's next version,
-- 4. docs/explain/storage.md.

CREATE TABLE epochs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    epoch TEXT NOT NULL UNIQUE,
    parent_epoch TEXT,
    fork_seq INTEGER NOT NULL,
    started_at_ns INTEGER NOT NULL
) STRICT;

-- AUTOINCREMENT is the guard: a plain rowid would be given out again after the tail is deleted.
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ns INTEGER NOT NULL,
    type TEXT NOT NULL,
    mesh TEXT,
    actor TEXT,
    ref TEXT,
    body TEXT NOT NULL
) STRICT;

-- One row: what pruning and size limits decide by, changed in the transaction of the rows it counts.
CREATE TABLE journal_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    pruned_through INTEGER NOT NULL,
    snapshot_seq INTEGER,
    body_bytes INTEGER NOT NULL
) STRICT;

INSERT INTO journal_state VALUES (1, 0, NULL, 0);

CREATE VIEW feed_journal_v1 AS
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal;
