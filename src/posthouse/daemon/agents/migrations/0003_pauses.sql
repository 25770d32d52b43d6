-- Agents that are paused until a time, or are being given the mail that waited meanwhile, one message at a time.
-- The row goes when no mail from the pause is left. Times are wall nanoseconds.
-- If you change this table: 1. a new migration, 2. pauses.py, 3. docs/explain.

CREATE TABLE pauses (
    agent TEXT PRIMARY KEY,
    until_ns INTEGER NOT NULL,
    reason TEXT NOT NULL,
    -- the agent itself, 'person' or 'hook'
    set_by TEXT NOT NULL,
    set_at_ns INTEGER NOT NULL,
    -- the next message that waited may wake the agent from this time on
    release_at_ns INTEGER NOT NULL
) STRICT;
