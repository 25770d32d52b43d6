-- :name append
INSERT INTO journal (seq, at_ns, type, mesh, actor, ref, body) VALUES (?, ?, ?, ?, ?, ?, ?)

-- :name head
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0)

-- :name newest_at_ns
SELECT coalesce((SELECT at_ns FROM journal ORDER BY seq DESC LIMIT 1), 0)

-- :name state
SELECT pruned_through, snapshot_seq, body_bytes FROM journal_state

-- :name count_bytes
UPDATE journal_state SET
    body_bytes = body_bytes + (SELECT coalesce(sum(octet_length(body)), 0) FROM journal WHERE seq > counted_through),
    counted_through = ?1
WHERE id = 1 AND counted_through < ?1

-- :name add_bytes
UPDATE journal_state SET body_bytes = body_bytes + ? WHERE id = 1

-- :name read_after
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal WHERE seq > ? ORDER BY seq LIMIT ?

-- :name read_types_after
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE seq > ? AND type IN (SELECT value FROM json_each(?)) ORDER BY seq LIMIT ?

-- :name read_newest
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE seq > ?1 AND seq <= ?2 AND (?3 IS NULL OR type IN (SELECT value FROM json_each(?3))) ORDER BY seq DESC LIMIT ?4

-- :name records_of
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE
    seq > :after AND type IN (SELECT value FROM json_each(:types))
    AND (:node IS NULL OR actor = :node)
    AND (:mesh IS NULL OR mesh = :mesh)
    AND (:id IS NULL OR ref = :id)
    AND (:before_ns IS NULL OR at_ns < :before_ns)
ORDER BY seq LIMIT :limit

-- :name set_body
UPDATE journal SET body = ? WHERE seq = ?

-- :name counted_through
SELECT counted_through FROM journal_state

-- :name current_epoch
SELECT epoch, parent_epoch, fork_seq FROM epochs ORDER BY number DESC LIMIT 1

-- :name all_epochs
SELECT epoch, parent_epoch, fork_seq, started_at_ns FROM epochs ORDER BY number

-- :name add_epoch
INSERT INTO epochs (epoch, parent_epoch, fork_seq, started_at_ns) VALUES (?, ?, ?, ?)

-- :name prefix_bytes
SELECT coalesce(sum(octet_length(body)), 0) FROM journal
WHERE seq <= min(?, (SELECT counted_through FROM journal_state))

-- :name delete_prefix
DELETE FROM journal WHERE seq <= ?

-- :name set_pruned
UPDATE journal_state SET pruned_through = ?1, snapshot_seq = ?2, body_bytes = body_bytes - ?3,
counted_through = max(counted_through, ?1) WHERE id = 1

-- :name count_rows
SELECT count(*), coalesce(min(seq), 0), coalesce(max(seq), 0), coalesce(sum(octet_length(body))
FILTER (WHERE seq <= (SELECT counted_through FROM journal_state)), 0) FROM journal

-- :name first_gap
SELECT seq FROM (SELECT seq, lag(seq) OVER (ORDER BY seq) AS before FROM journal)
WHERE before IS NOT NULL AND seq != before + 1 LIMIT 1

-- :name time_going_back
SELECT seq FROM (SELECT seq, at_ns, lag(at_ns) OVER (ORDER BY seq) AS before FROM journal)
WHERE before > at_ns LIMIT 1

-- :name types
SELECT DISTINCT type FROM journal

-- :name type_of
SELECT type FROM journal WHERE seq = ?

-- :name broken_body
SELECT seq FROM journal WHERE NOT json_valid(body) LIMIT 1

-- :name all_tables
SELECT name FROM main.sqlite_schema WHERE type = 'table' AND (name NOT LIKE 'sqlite_%' OR name = 'sqlite_sequence')
ORDER BY name = 'sqlite_sequence'
