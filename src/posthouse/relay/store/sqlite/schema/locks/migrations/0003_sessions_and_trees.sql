-- A holder is a session of a node; a lock may be shared, and may cover the names below it. `locks` has one row per
-- holder and resource; when the last lease of a name has ended, its row stays and shows the last token.
-- That a waiter was served is known in memory, so the ticket leaves the row.

CREATE TABLE locks_with_sessions (
    mesh TEXT NOT NULL,
    resource TEXT NOT NULL,
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    token INTEGER NOT NULL CHECK (token > 0),
    lease_ms INTEGER NOT NULL,
    -- boot time, of meaning within one run: each start sets it anew for every lease that may be active
    deadline_boot_ns INTEGER NOT NULL,
    is_released INTEGER NOT NULL CHECK (is_released IN (0, 1)),
    is_tree INTEGER NOT NULL CHECK (is_tree IN (0, 1)),
    is_shared INTEGER NOT NULL CHECK (is_shared IN (0, 1)),
    PRIMARY KEY (mesh, resource, owner, session)
) STRICT, WITHOUT ROWID;

INSERT INTO locks_with_sessions
SELECT mesh, resource, owner, '', token, lease_ms, deadline_boot_ns, is_released, 0, 0 FROM locks;

DROP TABLE locks;

ALTER TABLE locks_with_sessions RENAME TO locks;

-- A tree looks for leases below it, and free names may be many.
CREATE INDEX locks_unreleased ON locks (mesh, resource) WHERE is_released = 0;

ALTER TABLE lock_requests ADD COLUMN session TEXT NOT NULL DEFAULT '';

-- what a retry must repeat besides resource and lease: empty for a plain exclusive lock
ALTER TABLE lock_requests ADD COLUMN parameters TEXT NOT NULL DEFAULT '';

DROP INDEX lock_requests_by_id;

CREATE UNIQUE INDEX lock_requests_by_id ON lock_requests (request_id, owner, session, mesh, resource);

-- What happened to locks, for readers outside. boot_ns values compare within a run only, seq always.
CREATE VIEW feed_locks_v2 AS
SELECT
    seq,
    at_ns,
    type,
    mesh,
    CASE type WHEN 'lock.run_started' THEN NULL ELSE ref END AS resource,
    body ->> '$.owner' AS owner,
    coalesce(body ->> '$.session', '') AS session,
    body ->> '$.token' AS token,
    CASE WHEN body ->> '$.shared' THEN 'shared' ELSE 'exclusive' END AS mode,
    coalesce(body ->> '$.tree', 0) AS tree,
    body ->> '$.lease_ms' AS lease_ms,
    body ->> '$.request_id' AS request_id,
    body ->> '$.wait_ms' AS wait_ms,
    body ->> '$.run_id' AS run_id,
    coalesce(body ->> '$.granted_boot_ns', body ->> '$.boot_ns') AS boot_ns,
    body ->> '$.deadline_boot_ns' AS deadline_boot_ns,
    body ->> '$.former_owner' AS former_owner,
    body ->> '$.former_token' AS former_token,
    body ->> '$.former_deadline_boot_ns' AS former_deadline_boot_ns,
    CASE type WHEN 'lock.broken' THEN actor END AS broken_by
FROM journal
WHERE type IN (
    'lock.run_started', 'lock.acquired', 'lock.renewed', 'lock.released', 'lock.taken_over', 'lock.expired', 'lock.broken'
);
