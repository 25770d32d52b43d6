-- Meshes whose admins approve new keys of members, and the keys that wait for it.
ALTER TABLE meshes ADD COLUMN approves_keys boolean NOT NULL DEFAULT false;

CREATE TABLE held_keys (
    mesh text COLLATE "C" NOT NULL REFERENCES meshes (mesh),
    node text COLLATE "C" NOT NULL,
    -- the last key of this member that needed no approval, or had it
    former text COLLATE "C" NOT NULL,
    at_ns bigint NOT NULL,
    PRIMARY KEY (mesh, node)
);
