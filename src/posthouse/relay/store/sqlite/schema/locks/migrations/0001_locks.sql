-- Locks. The rows of `locks` stay for ever, because tokens must grow for ever.
-- If you change what these tables hold: 1. a new migration, 2. replay.py and the records of posthouse.journal,
-- 3. the feed view's next version, 4. docs/explain/locks.md.

CREATE TABLE locks (
    mesh TEXT NOT NULL,
    resource TEXT NOT NULL,
    owner TEXT NOT NULL,
    token INTEGER NOT NULL CHECK (token > 0),
    lease_ms INTEGER NOT NULL,
    -- boot time, of meaning within one run: each start sets it anew for every lease that was not released
    deadline_boot_ns INTEGER NOT NULL,
    is_released INTEGER NOT NULL CHECK (is_released IN (0, 1)),
    -- ticket of the last waiter that was served; of meaning within one run
    turn INTEGER NOT NULL,
    PRIMARY KEY (mesh, resource)
) STRICT, WITHOUT ROWID;

-- Granted request ids, oldest first by rowid; kept for a day.
CREATE TABLE lock_requests (
    request_seq INTEGER PRIMARY KEY,
    request_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    mesh TEXT NOT NULL,
    resource TEXT NOT NULL,
    lease_ms INTEGER NOT NULL,
    token INTEGER NOT NULL,
    expires_at_ns INTEGER NOT NULL,
    granted_at_ns INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX lock_requests_by_id ON lock_requests (request_id, owner, mesh, resource);

-- The token of the last fenced write of each coordinate under each resource: what a strict fence looks at.
CREATE TABLE fence_writes (
    address BLOB NOT NULL,
    mesh TEXT NOT NULL,
    resource TEXT NOT NULL,
    token INTEGER NOT NULL,
    PRIMARY KEY (address, mesh, resource)
) STRICT, WITHOUT ROWID;

-- The run that decides now, or decided last; one row.
CREATE TABLE lock_run (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    run_id TEXT NOT NULL,
    epoch TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    boot_ns INTEGER NOT NULL
) STRICT;

-- What happened to locks, for readers outside. boot_ns values compare within a run only, seq always.
CREATE VIEW feed_locks_v1 AS
SELECT
    seq,
    at_ns,
    type,
    mesh,
    CASE type WHEN 'lock.run_started' THEN NULL ELSE ref END AS resource,
    body ->> '$.owner' AS owner,
    body ->> '$.token' AS token,
    body ->> '$.lease_ms' AS lease_ms,
    body ->> '$.request_id' AS request_id,
    body ->> '$.wait_ms' AS wait_ms,
    body ->> '$.run_id' AS run_id,
    coalesce(body ->> '$.granted_boot_ns', body ->> '$.boot_ns') AS boot_ns,
    body ->> '$.deadline_boot_ns' AS deadline_boot_ns,
    body ->> '$.former_owner' AS former_owner,
    body ->> '$.former_token' AS former_token,
    body ->> '$.former_deadline_boot_ns' AS former_deadline_boot_ns,
    body ->> '$.token_leap' AS token_leap
FROM journal
WHERE type IN ('lock.run_started', 'lock.acquired', 'lock.renewed', 'lock.released', 'lock.taken_over');
