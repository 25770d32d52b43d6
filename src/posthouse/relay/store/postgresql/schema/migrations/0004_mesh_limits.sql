-- Limits of meshes and what they have stored, and meshes that are suspended or deleted.
ALTER TABLE meshes ADD COLUMN state text COLLATE "C" NOT NULL DEFAULT 'active'
CHECK (state IN ('active', 'suspended', 'deleted'));

-- A mesh has its own limits and those that the relay's admins allow, each as JSON.
CREATE TABLE mesh_limits (
    mesh text COLLATE "C" NOT NULL REFERENCES meshes (mesh),
    source text COLLATE "C" NOT NULL CHECK (source IN ('mesh', 'relay')),
    limits text NOT NULL,
    PRIMARY KEY (mesh, source)
);

-- Events with content and the bytes of their JSON; they change with the events, in the same transaction. Every group
-- updates a row: a page has room for its new versions, so that no index has to change.
CREATE TABLE mesh_usage (
    mesh text COLLATE "C" PRIMARY KEY,
    events bigint NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 10);

INSERT INTO mesh_usage (mesh, events, bytes)
SELECT mesh, count(*), sum(length(raw)) FROM events WHERE raw IS NOT NULL GROUP BY mesh;

-- Deleted meshes whose events are still to be erased, and up to which seq that is done.
CREATE TABLE mesh_erasures (
    mesh text COLLATE "C" PRIMARY KEY,
    actor text COLLATE "C" NOT NULL,
    through_seq bigint NOT NULL
);
