-- How far a reader has come in an agent's mail, for each mesh: `wait` is one reader, programs name others.
-- A position means something only in the inbox whose epoch it was taken from: a new or restored inbox starts again.
-- If you change this table: 1. a new migration, 2. marks.py, 3. docs/explain.

CREATE TABLE marks (
    agent TEXT NOT NULL,
    reader TEXT NOT NULL,
    mesh TEXT NOT NULL,
    epoch TEXT NOT NULL,
    position INTEGER NOT NULL,
    moved_at_ns INTEGER NOT NULL,
    PRIMARY KEY (agent, reader, mesh)
) STRICT;
