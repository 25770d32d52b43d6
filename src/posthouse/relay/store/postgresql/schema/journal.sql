-- :name append
INSERT INTO journal (seq, at_ns, type, mesh, actor, ref, body)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[])

-- :name head
-- What a group has to know when it begins; the last column: whether its COMMIT will wait for a standby.
SELECT
    coalesce((SELECT max(seq) FROM journal), (SELECT pruned_through FROM journal_state)),
    coalesce((SELECT at_ns FROM journal ORDER BY seq DESC LIMIT 1), 0),
    pg_current_xact_id()::text,
    EXISTS (SELECT 1 FROM blocked_ids) OR EXISTS (SELECT 1 FROM deleted_addresses),
    epoch, system_identifier, timeline, journal_oid, is_replicated,
    current_setting('synchronous_standby_names') != ''
    AND current_setting('synchronous_commit') IN ('on', 'remote_apply')
FROM epochs ORDER BY number DESC LIMIT 1

-- :name newest_at_ns
SELECT coalesce((SELECT at_ns FROM journal ORDER BY seq DESC LIMIT 1), 0)

-- :name notify_head
SELECT pg_notify('posthouse', $1::text)

-- :name state
SELECT pruned_through, snapshot_seq FROM journal_state

-- :name read_after
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal WHERE seq > $1 ORDER BY seq LIMIT $2

-- :name read_types_after
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE seq > $1 AND type = ANY($2::text[]) ORDER BY seq LIMIT $3

-- :name read_newest
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE seq > $1 AND seq <= $2 AND ($3::text[] IS NULL OR type = ANY($3::text[])) ORDER BY seq DESC LIMIT $4

-- :name extent
SELECT (SELECT pruned_through FROM journal_state),
    coalesce((SELECT max(seq) FROM journal), (SELECT pruned_through FROM journal_state))

-- :name all_epochs
SELECT epoch, parent_epoch, fork_seq FROM epochs ORDER BY number

-- :name add_epoch
INSERT INTO epochs (epoch, parent_epoch, fork_seq, started_at_ns) VALUES ($1, $2, $3, $4)

-- :name delete_prefix
DELETE FROM journal WHERE seq <= $1

-- :name set_pruned
UPDATE journal_state SET pruned_through = $1, snapshot_seq = $2
