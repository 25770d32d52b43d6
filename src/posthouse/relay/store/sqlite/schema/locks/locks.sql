-- Parameters of the statements that look for overlaps, all unreleased rows: mesh, resource, owner, session, whether the
-- claim is shared, boot time, and one unused; then the JSON array of the name and the trees above it; then the range below it.
-- The limit is OVERLAPS_MAX, a literal: SQLite would prepare a statement with a bound limit again for each run.
-- For a shared claim they leave out the active shared leases of other holders, which cannot conflict and may be many.

-- :name overlaps_of_name
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = ?1 AND resource = ?2 AND is_released = 0
    AND NOT (?5 AND is_shared AND deadline_boot_ns > ?6 AND NOT (owner = ?3 AND session = ?4))
LIMIT 64

-- :name overlaps_of_path
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = ?1 AND resource IN (SELECT value FROM json_each(?8)) AND is_released = 0
    AND (resource = ?2 OR is_tree)
    AND NOT (?5 AND is_shared AND deadline_boot_ns > ?6 AND NOT (owner = ?3 AND session = ?4))
LIMIT 64

-- :name overlaps_below
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared
FROM locks INDEXED BY locks_unreleased
WHERE mesh = ?1 AND resource >= ?9 AND resource < ?10 AND is_released = 0
    AND NOT (?5 AND is_shared AND deadline_boot_ns > ?6 AND NOT (owner = ?3 AND session = ?4))
LIMIT 64

-- :name own_overlap
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = ?1 AND resource IN (SELECT value FROM json_each(?5)) AND owner = ?3 AND session = ?4
    AND is_released = 0 AND deadline_boot_ns > ?6 AND (resource = ?2 OR is_tree)
UNION ALL
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared
FROM locks INDEXED BY locks_unreleased
WHERE mesh = ?1 AND resource >= ?7 AND resource < ?8 AND is_released = 0
    AND owner = ?3 AND session = ?4 AND deadline_boot_ns > ?6
LIMIT 1

-- :name leases_of_owner
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = ?1 AND resource = ?2 AND owner = ?3

-- :name leases_of_name
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = ?1 AND resource = ?2
LIMIT 64

-- :name leases_of_token
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = ?1 AND resource = ?2 AND token = ?3

-- :name covering_leases
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = ?1 AND resource IN (SELECT value FROM json_each(?3))
    AND (resource = ?2 OR (is_tree AND is_released = 0)) AND NOT (?4 AND is_shared)
ORDER BY is_released, deadline_boot_ns DESC
LIMIT 64

-- :name add_lease
INSERT INTO locks (owner, token, lease_ms, deadline_boot_ns, session, is_tree, is_shared, mesh, resource, is_released)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0)

-- :name replace_last_lease
UPDATE locks SET owner = ?1, token = ?2, lease_ms = ?3, deadline_boot_ns = ?4, session = ?5, is_tree = ?6,
    is_shared = ?7, is_released = 0
WHERE mesh = ?8 AND resource = ?9 AND is_released = 1

-- :name extend_lease
UPDATE locks SET lease_ms = ?1, deadline_boot_ns = ?2 WHERE mesh = ?3 AND resource = ?4 AND owner = ?5 AND session = ?6

-- :name end_lease
UPDATE locks SET is_released = 1 WHERE mesh = ?1 AND resource = ?2 AND owner = ?3 AND session = ?4

-- :name drop_shared_lease
DELETE FROM locks WHERE mesh = ?1 AND resource = ?2 AND owner = ?3 AND session = ?4 AND EXISTS (
    SELECT 1 FROM locks AS other WHERE other.mesh = ?1 AND other.resource = ?2 AND other.is_released = 0
        AND NOT (other.owner = ?3 AND other.session = ?4)
)

-- :name all_locks
SELECT mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
ORDER BY mesh, resource, owner, session

-- :name page_of_locks
SELECT mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE (mesh, resource, owner, session) > (?1, ?2, ?3, ?4)
    AND (?5 IS NULL OR mesh IN (SELECT value FROM json_each(?5)))
ORDER BY mesh, resource, owner, session LIMIT ?6

-- :name find_request
SELECT request_id, lease_ms, token, expires_at_ns, granted_at_ns, parameters FROM lock_requests
WHERE request_id = ? AND owner = ? AND session = ? AND mesh = ? AND resource = ?

-- :name save_request
INSERT INTO lock_requests
    (request_id, owner, session, mesh, resource, lease_ms, token, expires_at_ns, granted_at_ns, parameters)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (request_id, owner, session, mesh, resource) DO UPDATE
SET lease_ms = ?6, token = ?7, expires_at_ns = ?8, granted_at_ns = ?9, parameters = ?10

-- :name forget_requests
DELETE FROM lock_requests WHERE request_seq IN (
    SELECT request_seq FROM (SELECT request_seq, granted_at_ns FROM lock_requests ORDER BY request_seq LIMIT ?2)
    WHERE granted_at_ns <= ?1
)

-- :name requests_saved_through
SELECT saved_through FROM lock_requests_state

-- :name mark_requests
UPDATE lock_requests_state SET saved_through = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0)

-- :name grants_to_write
SELECT at_ns, mesh, ref, body FROM journal
WHERE seq > (SELECT saved_through FROM lock_requests_state) AND type IN ('lock.acquired', 'lock.taken_over')
    AND body ->> '$.request_id' IS NOT NULL
ORDER BY seq

-- :name find_fence_write
SELECT token FROM fence_writes WHERE address = ? AND mesh = ? AND resource = ?

-- :name save_fence_write
INSERT INTO fence_writes (address, mesh, resource, token) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (address, mesh, resource) DO UPDATE SET token = ?4

-- :name find_run
SELECT run_id, epoch, boot_id, boot_ns FROM lock_run

-- :name save_run
INSERT INTO lock_run (one, run_id, epoch, boot_id, boot_ns) VALUES (1, ?1, ?2, ?3, ?4)
ON CONFLICT (one) DO UPDATE SET run_id = ?1, epoch = ?2, boot_id = ?3, boot_ns = ?4

-- :name count_reopened
SELECT count(*) FROM locks WHERE is_released = 0 AND deadline_boot_ns > ?

-- :name reopen
UPDATE locks SET deadline_boot_ns =
    CASE WHEN deadline_boot_ns > ?2 THEN ?1 + lease_ms * 1000000 ELSE min(deadline_boot_ns, ?1) END
WHERE is_released = 0

-- :name void_tokens
UPDATE locks SET token = ? WHERE is_released = 0

-- :name last_token
SELECT token FROM token_counter

-- :name raise_counter
UPDATE token_counter SET token = max(token, ?)

-- :name lock_history
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE seq > ? AND type IN ('lock.run_started', 'lock.acquired', 'lock.renewed', 'lock.released', 'lock.taken_over',
    'lock.expired', 'lock.broken')
ORDER BY seq

-- :name journal_counter
SELECT max(coalesce(body ->> '$.token_counter', body ->> '$.token', 0)) FROM journal
WHERE seq > ? AND type IN ('lock.run_started', 'lock.acquired', 'lock.taken_over')

-- :name snapshot
SELECT seq, body FROM journal WHERE seq = (SELECT snapshot_seq FROM journal_state)
