-- Events whose command keeps failing, one row per hook and event. The hook goes on with the next event; the row is tried
-- again until its command succeeds or a person drops it. It has everything that the command is told, so that the
-- journal of the event can be pruned. Times are wall nanoseconds.
-- If you change this table: 1. a new migration, 2. daemon/wake/parked_events.py, 3. docs/how-to/event-hooks.md.

CREATE TABLE parked_events (
    hook TEXT NOT NULL,
    event_id TEXT NOT NULL,
    mesh TEXT,
    -- what the token of the command opens
    ref TEXT,
    -- JSON object of texts
    environment TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    last_exit INTEGER NOT NULL,
    parked_at_ns INTEGER NOT NULL,
    next_at_ns INTEGER NOT NULL,
    PRIMARY KEY (hook, event_id)
) STRICT, WITHOUT ROWID;
