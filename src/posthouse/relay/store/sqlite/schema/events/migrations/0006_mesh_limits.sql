-- Limits of meshes and what they have stored, and meshes that are suspended or deleted.
ALTER TABLE meshes ADD COLUMN state TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'suspended', 'deleted'));

-- A mesh has its own limits and those that the relay's admins allow, each as JSON.
CREATE TABLE mesh_limits (
    mesh TEXT NOT NULL REFERENCES meshes (mesh),
    source TEXT NOT NULL CHECK (source IN ('mesh', 'relay')),
    limits TEXT NOT NULL,
    PRIMARY KEY (mesh, source)
) STRICT, WITHOUT ROWID;

-- Events with content and the bytes of their JSON; they change with the events, in the same transaction.
CREATE TABLE mesh_usage (
    mesh TEXT PRIMARY KEY,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO mesh_usage (mesh, events, bytes)
SELECT mesh, count(*), sum(octet_length(raw)) FROM events WHERE raw IS NOT NULL GROUP BY mesh;

-- Deleted meshes whose events are still to be erased, and up to which seq that is done.
CREATE TABLE mesh_erasures (
    mesh TEXT PRIMARY KEY,
    actor TEXT NOT NULL,
    through_seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
