-- Groups add here what they change about the usage of meshes: a row that every group updated would bloat while a
-- snapshot is open, and each group would have to pass over its old versions. From time to time a group adds the changes
-- to mesh_usage; `counted_through` is the last one that a row of it has.
CREATE TABLE usage_changes (
    mesh text COLLATE "C" NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    events bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (mesh, number)
);

ALTER TABLE mesh_usage ADD COLUMN counted_through bigint NOT NULL DEFAULT 0;

CREATE VIEW current_usage AS
SELECT mesh, sum(events)::bigint AS events, sum(bytes)::bigint AS bytes
FROM (
    SELECT mesh, events, bytes FROM mesh_usage
    UNION ALL
    SELECT c.mesh, c.events, c.bytes
    FROM usage_changes AS c LEFT JOIN mesh_usage AS u ON u.mesh = c.mesh
    WHERE c.number > coalesce(u.counted_through, 0)
) AS found
GROUP BY mesh;
