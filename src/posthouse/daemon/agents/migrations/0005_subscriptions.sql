-- The topics that each agent follows; the host subscribes at the relay of a mesh to the union of the patterns.
-- The agent '' is the default inbox.
-- If you change this table: 1. a new migration, 2. subscriptions.py, 3. docs/explain.

CREATE TABLE subscriptions (
    mesh TEXT NOT NULL,
    agent TEXT NOT NULL,
    pattern TEXT NOT NULL,
    PRIMARY KEY (mesh, agent, pattern)
) STRICT, WITHOUT ROWID;
