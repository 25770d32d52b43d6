-- The agents of this home. A retired agent keeps its row, so that mail to it is refused with the reason. A renamed
-- agent leaves a retired row under its old name that names the new one. Times are wall nanoseconds.
-- In every table of this store a column `agent` holds an agent's name: renaming an agent changes it everywhere.
-- If you change this table: 1. a new migration, 2. registry.py, 3. docs/explain.

CREATE TABLE agents (
    name TEXT PRIMARY KEY,
    program TEXT,
    project TEXT,
    summary TEXT,
    -- JSON array of texts
    capabilities TEXT NOT NULL DEFAULT '[]',
    status TEXT NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'working', 'dnd')),
    -- 1: senders learn when this agent's program was given the full text
    receipts INTEGER NOT NULL DEFAULT 1,
    created_at_ns INTEGER NOT NULL,
    retired_at_ns INTEGER,
    retired_reason TEXT,
    renamed_to TEXT,
    -- the process of the program that uses the name: its id, and when it started (see processes.py)
    pid INTEGER,
    process_start TEXT
) STRICT;
