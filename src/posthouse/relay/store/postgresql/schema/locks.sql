-- Parameters of the statements that look for overlaps, all unreleased rows: $1 mesh, $2 resource, $3 owner, $4 session,
-- $5 whether the claim is shared, $6 boot time, $7 the name and the trees above it, $8 and $9 the range below it.
-- For a shared claim they leave out the active shared leases of other holders, which cannot conflict and may be many.
-- The limit is OVERLAPS_MAX.

-- :name overlaps
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = $1 AND NOT is_released
    AND ((resource = ANY($7::bytea[]) AND (resource = $2 OR is_tree)) OR (resource >= $8 AND resource < $9))
    AND NOT ($5 AND is_shared AND deadline_boot_ns > $6 AND NOT (owner = $3 AND session = $4))
LIMIT 64

-- :name own_overlap
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = $1 AND NOT is_released AND owner = $3 AND session = $4 AND deadline_boot_ns > $5
    AND ((resource = ANY($6::bytea[]) AND (resource = $2 OR is_tree)) OR (resource >= $7 AND resource < $8))
LIMIT 1

-- :name leases_of_owner
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = $1 AND resource = $2 AND owner = $3

-- :name leases_of_name
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = $1 AND resource = $2
LIMIT 64

-- :name leases_of_token
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = $1 AND resource = $2 AND token = $3

-- :name covering_leases
SELECT resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE mesh = $1 AND resource = ANY($3::bytea[])
    AND (resource = $2 OR (is_tree AND NOT is_released)) AND NOT ($4 AND is_shared)
ORDER BY is_released, deadline_boot_ns DESC
LIMIT 64

-- :name drop_last_lease
-- The last row of a free name, which may be of another holder, makes room for the new lease.
DELETE FROM locks WHERE mesh = $1 AND resource = $2 AND is_released

-- :name add_lease
INSERT INTO locks (mesh, resource, owner, token, lease_ms, deadline_boot_ns, session, is_tree, is_shared, is_released)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, false)

-- :name extend_lease
UPDATE locks SET lease_ms = $5, deadline_boot_ns = $6 WHERE mesh = $1 AND resource = $2 AND owner = $3 AND session = $4

-- :name drop_shared_lease
DELETE FROM locks WHERE mesh = $1 AND resource = $2 AND owner = $3 AND session = $4 AND EXISTS (
    SELECT 1 FROM locks AS other WHERE other.mesh = $1 AND other.resource = $2 AND NOT other.is_released
        AND NOT (other.owner = $3 AND other.session = $4))

-- :name end_lease
UPDATE locks SET is_released = true WHERE mesh = $1 AND resource = $2 AND owner = $3 AND session = $4

-- :name all_locks
SELECT mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
ORDER BY mesh, resource, owner, session

-- :name page_of_locks
SELECT mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared FROM locks
WHERE (mesh, resource, owner, session) > ($1, $2, $3, $4) AND ($5::text[] IS NULL OR mesh = ANY($5::text[]))
ORDER BY mesh, resource, owner, session LIMIT $6

-- :name find_request
SELECT request_id, lease_ms, token, expires_at_ns, granted_at_ns, parameters FROM lock_requests
WHERE request_id = $1 AND owner = $2 AND session = $3 AND mesh = $4 AND resource = $5

-- :name save_request
INSERT INTO lock_requests
    (request_id, owner, session, mesh, resource, lease_ms, token, expires_at_ns, granted_at_ns, parameters)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (request_id, owner, session, mesh, resource) DO UPDATE
SET lease_ms = $6, token = $7, expires_at_ns = $8, granted_at_ns = $9, parameters = $10

-- :name forget_requests
DELETE FROM lock_requests WHERE request_seq IN (
    SELECT request_seq FROM lock_requests ORDER BY request_seq LIMIT $2) AND granted_at_ns <= $1

-- :name find_fence_write
SELECT token FROM fence_writes WHERE address = $1 AND mesh = $2 AND resource = $3

-- :name save_fence_write
INSERT INTO fence_writes (address, mesh, resource, token) VALUES ($1, $2, $3, $4)
ON CONFLICT (address, mesh, resource) DO UPDATE SET token = $4

-- :name find_run
SELECT run_id, epoch, boot_id, boot_ns FROM lock_run

-- :name save_run
INSERT INTO lock_run (one, run_id, epoch, boot_id, boot_ns) VALUES (1, $1, $2, $3, $4)
ON CONFLICT (one) DO UPDATE SET run_id = $1, epoch = $2, boot_id = $3, boot_ns = $4

-- :name count_reopened
SELECT count(*) FROM locks WHERE NOT is_released AND deadline_boot_ns > $1

-- :name reopen
UPDATE locks SET deadline_boot_ns =
    CASE WHEN deadline_boot_ns > $2 THEN $1::bigint + lease_ms * 1000000 ELSE least(deadline_boot_ns, $1::bigint) END
WHERE NOT is_released

-- :name void_tokens
UPDATE locks SET token = $1 WHERE NOT is_released

-- :name last_token
SELECT token FROM token_counter

-- :name next_token
UPDATE token_counter SET token = token + 1 RETURNING token

-- :name raise_counter
UPDATE token_counter SET token = greatest(token, $1::bigint)
