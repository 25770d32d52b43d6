-- What the pipeline reads; the same columns as the views of SQLite. Names that may hold any text stay bytes.
CREATE VIEW feed_journal_v1 AS
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal;

CREATE VIEW feed_events_v1 AS
SELECT j.seq, j.at_ns, j.type, j.mesh, j.ref AS id, j.actor AS pubkey, e.kind::bigint AS kind, e.created_at_ns,
    'ed25519:' || encode(e.recipient, 'hex') AS recipient, e.expiration_s, e.raw AS event
FROM journal AS j JOIN events AS e ON e.seq = j.seq
WHERE j.type IN ('event.accepted', 'message.accepted', 'confirmation.accepted');

CREATE VIEW feed_deliveries_v1 AS
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE type = 'message.accepted' OR type LIKE 'delivery.%';

-- json refuses the escape of NUL, which a client may put into a request id.
CREATE VIEW feed_locks_v2 AS
SELECT
    seq, at_ns, type, mesh,
    CASE type WHEN 'lock.run_started' THEN NULL ELSE ref END AS resource,
    b ->> 'owner' AS owner,
    coalesce(b ->> 'session', '') AS session,
    (b ->> 'token')::bigint AS token,
    CASE WHEN (b ->> 'shared')::boolean THEN 'shared' ELSE 'exclusive' END AS mode,
    coalesce((b ->> 'tree')::boolean, false)::integer::bigint AS tree,
    (b ->> 'lease_ms')::bigint AS lease_ms,
    b ->> 'request_id' AS request_id,
    (b ->> 'wait_ms')::bigint AS wait_ms,
    b ->> 'run_id' AS run_id,
    coalesce((b ->> 'granted_boot_ns')::bigint, (b ->> 'boot_ns')::bigint) AS boot_ns,
    (b ->> 'deadline_boot_ns')::bigint AS deadline_boot_ns,
    b ->> 'former_owner' AS former_owner,
    (b ->> 'former_token')::bigint AS former_token,
    (b ->> 'former_deadline_boot_ns')::bigint AS former_deadline_boot_ns,
    CASE type WHEN 'lock.broken' THEN actor END AS broken_by
FROM (
    SELECT seq, at_ns, type, mesh, actor, ref, replace(body, '\u0000', '\ufffd')::json AS b FROM journal
    WHERE type IN (
        'lock.run_started', 'lock.acquired', 'lock.renewed', 'lock.released', 'lock.taken_over', 'lock.expired',
        'lock.broken'
    )
) AS records;
