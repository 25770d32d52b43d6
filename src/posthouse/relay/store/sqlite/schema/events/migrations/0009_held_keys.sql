-- Meshes whose admins approve new keys of members, and the keys that wait for it.
ALTER TABLE meshes ADD COLUMN approves_keys INTEGER NOT NULL DEFAULT 0 CHECK (approves_keys IN (0, 1));

CREATE TABLE held_keys (
    mesh TEXT NOT NULL REFERENCES meshes (mesh),
    node TEXT NOT NULL,
    -- the last key of this member that needed no approval, or had it
    former TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    PRIMARY KEY (mesh, node)
) STRICT, WITHOUT ROWID;
