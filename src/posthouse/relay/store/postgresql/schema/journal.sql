-- :name append
INSERT INTO journal (seq, at_ns, type, mesh, actor, ref, body)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[])

-- :name head
SELECT
    coalesce((SELECT max(seq) FROM journal), (SELECT pruned_through FROM journal_state)),
    coalesce((SELECT at_ns FROM journal ORDER BY seq DESC LIMIT 1), 0),
    pg_current_xact_id()::text

-- :name notify_head
SELECT pg_notify('posthouse', $1::text)

-- :name state
SELECT pruned_through, snapshot_seq FROM journal_state

-- :name read_after
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal WHERE seq > $1 ORDER BY seq LIMIT $2

-- :name read_types_after
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE seq > $1 AND type = ANY($2::text[]) ORDER BY seq LIMIT $3

-- :name extent
SELECT (SELECT pruned_through FROM journal_state),
    coalesce((SELECT max(seq) FROM journal), (SELECT pruned_through FROM journal_state))

-- :name all_epochs
SELECT epoch, parent_epoch, fork_seq FROM epochs ORDER BY number

-- :name add_epoch
INSERT INTO epochs (epoch, parent_epoch, fork_seq, started_at_ns) VALUES ($1, NULL, 0, $2)

-- :name delete_prefix
DELETE FROM journal WHERE seq <= $1

-- :name set_pruned
UPDATE journal_state SET pruned_through = $1, snapshot_seq = $2
