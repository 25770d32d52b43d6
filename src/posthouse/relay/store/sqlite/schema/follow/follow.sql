-- :name position
SELECT stream, epoch, schema, head, number, digest FROM change_stream

-- :name begin_stream
INSERT OR REPLACE INTO change_stream (one, stream, epoch, schema, head, number, digest) VALUES (1, ?, ?, ?, ?, ?, ?)

-- :name advance
UPDATE change_stream SET head = ?, number = ?, digest = ?

-- :name add_changeset
INSERT INTO changesets (number, at_ns, head, digest, changeset) VALUES (?, ?, ?, ?, ?)

-- :name drop_through
DELETE FROM changesets WHERE number <= ?

-- :name sizes
SELECT number, at_ns, head, octet_length(changeset) FROM changesets ORDER BY number

-- :name changesets_after
SELECT number, at_ns, head, digest, changeset FROM changesets WHERE number > ? ORDER BY number

-- :name end_stream
DELETE FROM change_stream

-- :name clear_changesets
DELETE FROM changesets

-- :name schema_versions
SELECT component || ' ' || version FROM schema_versions ORDER BY component
