-- :name find_lock
SELECT owner, token, lease_ms, deadline_boot_ns, is_released, turn FROM locks WHERE mesh = ? AND resource = ?

-- :name add_lock
INSERT INTO locks (owner, token, lease_ms, deadline_boot_ns, is_released, turn, mesh, resource)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- :name change_lock
UPDATE locks SET owner = ?, token = ?, lease_ms = ?, deadline_boot_ns = ?, is_released = ?, turn = ?
WHERE mesh = ? AND resource = ?

-- :name all_locks
SELECT mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, turn FROM locks ORDER BY mesh, resource

-- :name page_of_locks
SELECT mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, turn FROM locks
WHERE (mesh, resource) > (?1, ?2) AND (?3 IS NULL OR mesh IN (SELECT value FROM json_each(?3)))
ORDER BY mesh, resource LIMIT ?4

-- :name find_request
SELECT request_id, lease_ms, token, expires_at_ns, granted_at_ns FROM lock_requests
WHERE request_id = ? AND owner = ? AND mesh = ? AND resource = ?

-- :name save_request
INSERT INTO lock_requests (request_id, owner, mesh, resource, lease_ms, token, expires_at_ns, granted_at_ns)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (request_id, owner, mesh, resource) DO UPDATE
SET lease_ms = ?5, token = ?6, expires_at_ns = ?7, granted_at_ns = ?8

-- :name forget_requests
DELETE FROM lock_requests WHERE request_seq IN (
    SELECT request_seq FROM (SELECT request_seq, granted_at_ns FROM lock_requests ORDER BY request_seq LIMIT ?2)
    WHERE granted_at_ns <= ?1
)

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

-- :name begin_turns
UPDATE locks SET turn = 0 WHERE turn != 0

-- :name void_tokens
UPDATE locks SET token = ? WHERE is_released = 0

-- :name last_token
SELECT token FROM token_counter

-- :name next_token
UPDATE token_counter SET token = token + 1 RETURNING token

-- :name raise_counter
UPDATE token_counter SET token = max(token, ?)

-- :name lock_history
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE seq > ? AND type IN ('lock.run_started', 'lock.acquired', 'lock.renewed', 'lock.released', 'lock.taken_over')
ORDER BY seq

-- :name journal_counter
SELECT max(coalesce(body ->> '$.token_counter', body ->> '$.token', 0)) FROM journal
WHERE seq > ? AND type IN ('lock.run_started', 'lock.acquired', 'lock.taken_over')

-- :name snapshot
SELECT seq, body FROM journal WHERE seq = (SELECT snapshot_seq FROM journal_state)
