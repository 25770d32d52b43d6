-- :name insert_events
INSERT INTO events (seq, id, pubkey, kind, created_at_ns, mesh, recipient, expiration_s, address, raw)
SELECT * FROM unnest(
    $1::bigint[], $2::bytea[], $3::bytea[], $4::integer[], $5::bigint[], $6::text[], $7::bytea[], $8::bigint[],
    $9::bytea[], $10::bytea[])

-- :name insert_terms
INSERT INTO event_terms (term, seq) SELECT * FROM unnest($1::bytea[], $2::bigint[])

-- :name insert_current
-- A coordinate may occur twice in a group: only its largest event is inserted, because ON CONFLICT changes a row once.
INSERT INTO current_events AS c (address, created_at_ns, id, event_seq)
SELECT DISTINCT ON (address) address, created_at_ns, id, event_seq
FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bigint[]) AS n (address, created_at_ns, id, event_seq)
ORDER BY address, created_at_ns DESC, id DESC
ON CONFLICT (address) DO UPDATE SET created_at_ns = excluded.created_at_ns, id = excluded.id,
event_seq = excluded.event_seq WHERE (excluded.created_at_ns, excluded.id) > (c.created_at_ns, c.id)

-- :name insert_fenced
INSERT INTO fenced_events (event_seq, mesh, resource, token)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[], $4::bigint[])

-- :name known_ids
SELECT id, seq FROM events WHERE id = ANY($1::bytea[])

-- :name current_of_all
SELECT address, event_seq, created_at_ns, id FROM current_events WHERE address = ANY($1::bytea[])

-- :name visible
-- The clauses of a query. Parameters of all of them: $1 now in seconds, $2 the node and its former keys, $3 meshes or NULL, $4 low, $5 high.
    e.raw IS NOT NULL
    AND (e.expiration_s IS NULL OR e.expiration_s > $1)
    AND ($3::text[] IS NULL OR e.mesh = ANY($3::text[]))
    AND (e.recipient IS NULL OR e.recipient = ANY($2::bytea[]) OR e.pubkey = ANY($2::bytea[]))

-- :name wanted
-- Parameters of a filter: $6 ids, $7 authors, $8 kinds, $9 mesh, $10 since_ns, $11 until_ns; each may be NULL.
    AND ($6::bytea[] IS NULL OR e.id = ANY($6::bytea[]))
    AND ($7::bytea[] IS NULL OR e.pubkey = ANY($7::bytea[]))
    AND ($8::integer[] IS NULL OR e.kind = ANY($8::integer[]))
    AND ($9::text IS NULL OR e.mesh = $9)
    AND ($10::bigint IS NULL OR e.created_at_ns >= $10)
    AND ($11::bigint IS NULL OR e.created_at_ns <= $11)

-- :name from_terms
events AS e
WHERE e.seq IN (SELECT t.seq FROM event_terms AS t WHERE t.term = ANY($12::bytea[]) AND t.seq > $4 AND t.seq <= $5) AND

-- :name from_one_term
event_terms AS t JOIN events AS e ON e.seq = t.seq
WHERE t.term = $12::bytea AND t.seq > $4 AND t.seq <= $5 AND

-- :name from_ids
events AS e
WHERE e.id = ANY($12::bytea[]) AND e.seq > $4 AND e.seq <= $5 AND

-- :name from_all
events AS e
WHERE $12::bytea IS NULL AND e.seq > $4 AND e.seq <= $5 AND

-- :name event_keys
SELECT created_at_ns, id FROM events WHERE seq > $1 AND seq <= $2
AND ($3::bytea[] IS NULL OR pubkey = ANY($3)) AND ($4::integer[] IS NULL OR kind = ANY($4))
AND ($5::text IS NULL OR mesh = $5)
AND ($6::bigint IS NULL OR created_at_ns >= $6) AND ($7::bigint IS NULL OR created_at_ns <= $7)

-- :name count_entries
SELECT count(*) FROM (
    SELECT 1 FROM event_terms WHERE term = ANY($1::bytea[]) AND seq > $2 AND seq <= $3 LIMIT $4) AS counted

-- :name one_by_id
SELECT e.seq, e.raw FROM events AS e WHERE e.id = $4 AND

-- :name current_of
SELECT e.seq, e.raw FROM current_events AS c JOIN events AS e ON e.seq = c.event_seq WHERE c.address = $4 AND

-- :name largest_of_address
-- An erased version hides the older ones.
SELECT e.seq, e.raw FROM events AS e WHERE e.address = $4 AND (e.is_erased OR

-- :name newest_fenced
SELECT e.seq, e.raw FROM fenced_events AS f JOIN events AS e ON e.seq = f.event_seq
WHERE f.mesh = $4 AND f.resource = $5 AND

-- :name expired
SELECT seq FROM events WHERE expiration_s <= $1 AND raw IS NOT NULL LIMIT $2

-- :name content_rows
SELECT e.seq, e.id, e.pubkey, e.kind, e.created_at_ns, e.mesh, e.recipient, e.address, e.raw, e.content_digest, e.is_erased
FROM events AS e WHERE

-- :name of_seqs
e.seq = ANY($1::bigint[])

-- :name of_ids
e.id = ANY($1::bytea[])

-- :name of_range
e.seq > $1 AND e.seq <= $2 ORDER BY e.seq

-- :name of_address
e.address = $1 AND e.created_at_ns <= $2 AND NOT e.is_erased ORDER BY e.created_at_ns DESC, e.id DESC LIMIT $3

-- :name empty_events
UPDATE events AS e SET raw = NULL, content_digest = n.digest, is_erased = $3
FROM unnest($1::bigint[], $2::bytea[]) AS n (seq, digest) WHERE e.seq = n.seq

-- :name remove_terms
DELETE FROM event_terms AS t USING unnest($1::bytea[], $2::bigint[]) AS gone (term, seq)
WHERE t.term = gone.term AND t.seq = gone.seq

-- :name remove_current
DELETE FROM current_events WHERE event_seq = ANY($1::bigint[])

-- :name remove_fenced
DELETE FROM fenced_events WHERE event_seq = ANY($1::bigint[])

-- :name next_current
INSERT INTO current_events (address, created_at_ns, id, event_seq)
SELECT DISTINCT ON (e.address) e.address, e.created_at_ns, e.id, e.seq
FROM events AS e
WHERE e.address = ANY($1::bytea[]) AND (e.raw IS NOT NULL OR e.is_erased)
ORDER BY e.address, e.created_at_ns DESC, e.id DESC
ON CONFLICT (address) DO NOTHING

-- :name erased_versions
SELECT address, created_at_ns, id, seq FROM events WHERE address IS NOT NULL AND is_erased

-- :name blocked_ids
SELECT id, pubkey FROM blocked_ids WHERE id = ANY($1::bytea[])

-- :name block_ids
INSERT INTO blocked_ids AS b (id, pubkey, created_at_ns)
SELECT id, $2, $3 FROM unnest($1::bytea[]) AS n (id)
ON CONFLICT (id, pubkey) DO UPDATE SET created_at_ns = greatest(b.created_at_ns, excluded.created_at_ns)

-- :name deleted_addresses
SELECT address, through_ns FROM deleted_addresses WHERE address = ANY($1::bytea[])

-- :name delete_address
INSERT INTO deleted_addresses AS d (address, through_ns, is_pending) VALUES ($1, $2, $3)
ON CONFLICT (address) DO UPDATE SET through_ns = greatest(d.through_ns, excluded.through_ns),
is_pending = d.is_pending OR excluded.is_pending

-- :name finish_address
UPDATE deleted_addresses SET is_pending = false WHERE address = $1

-- :name pending_address
SELECT address, through_ns FROM deleted_addresses WHERE is_pending LIMIT 1

-- :name prunable
SELECT e.seq FROM events AS e WHERE e.seq > $1 AND e.seq <= $2 AND e.expiration_s IS NULL AND

-- :name releasable
SELECT e.seq FROM kept_events AS k JOIN events AS e ON e.seq = k.seq WHERE k.seq > $1 AND k.seq <= $2
AND e.expiration_s IS NULL AND

-- :name not_needed
    e.raw IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM current_events AS c WHERE c.address = e.address AND c.event_seq = e.seq)
    AND NOT EXISTS (
        SELECT 1 FROM fenced_events AS f WHERE f.event_seq = e.seq AND NOT EXISTS (
            SELECT 1 FROM fenced_events AS later WHERE later.mesh = f.mesh AND later.resource = f.resource
            AND (later.token, later.event_seq) > (f.token, f.event_seq)))
    AND NOT EXISTS (
        SELECT 1 FROM deliveries AS d WHERE d.seq = e.seq
        AND (d.state IN ('queued', 'sent', 'rejected', 'dead') OR d.closed_at_ns >= $3))
    AND NOT EXISTS (SELECT 1 FROM waiting_confirmations AS w WHERE w.seq = e.seq)

-- :name among
SELECT e.seq FROM events AS e WHERE e.seq = ANY($1::bigint[]) AND $2::bigint IS NULL AND

-- :name oldest_of_mesh
SELECT e.seq, length(e.raw)::bigint
FROM (SELECT seq FROM event_terms WHERE term = $1 ORDER BY seq LIMIT $2) AS t
JOIN events AS e ON e.seq = t.seq WHERE

-- :name events_of_mesh
SELECT e.seq, e.kind, e.created_at_ns, CASE WHEN e.address IS NULL THEN 0 ELSE (
    SELECT count(*) FROM (
        SELECT 1 FROM events AS newer WHERE newer.address = e.address AND newer.raw IS NOT NULL
        AND (newer.created_at_ns, newer.id) > (e.created_at_ns, e.id) LIMIT $4) AS counted) END
FROM event_terms AS t JOIN events AS e ON e.seq = t.seq
WHERE t.term = $1 AND t.seq > $2 ORDER BY t.seq LIMIT $3

-- :name count_usage
INSERT INTO usage_changes (mesh, events, bytes) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[])

-- :name add_up_usage
INSERT INTO mesh_usage AS u (mesh, events, bytes, counted_through)
SELECT c.mesh, sum(c.events), sum(c.bytes), max(c.number)
FROM usage_changes AS c LEFT JOIN mesh_usage AS known ON known.mesh = c.mesh
WHERE c.number > coalesce(known.counted_through, 0) GROUP BY c.mesh
ON CONFLICT (mesh) DO UPDATE SET events = u.events + excluded.events, bytes = u.bytes + excluded.bytes,
counted_through = excluded.counted_through

-- :name forget_usage_changes
DELETE FROM usage_changes AS c USING mesh_usage AS u WHERE u.mesh = c.mesh AND c.number <= u.counted_through

-- :name usage_of
SELECT events, bytes FROM current_usage WHERE mesh = $1

-- :name all_usage
SELECT mesh, events, bytes FROM current_usage

-- :name table_sizes
SELECT c.relname::text, pg_total_relation_size(c.oid) FROM pg_class AS c
WHERE c.relkind = 'r' AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'events'::regclass)

-- :name begin_mesh_erasure
INSERT INTO mesh_erasures (mesh, actor, through_seq) VALUES ($1, $2, 0)

-- :name pending_mesh
SELECT mesh, actor, through_seq FROM mesh_erasures LIMIT 1

-- :name seqs_of_mesh
SELECT seq FROM events WHERE mesh = $1 AND seq > $2 AND seq <= $3 AND NOT is_erased

-- :name note_mesh_erased
UPDATE mesh_erasures SET through_seq = $2 WHERE mesh = $1

-- :name end_mesh_erasure
DELETE FROM mesh_erasures WHERE mesh = $1

-- :name known_events
SELECT e.seq, e.created_at_ns, e.raw IS NULL AND e.seq <= (SELECT pruned_through FROM journal_state)
    AND NOT (e.is_erased AND e.address IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM message_records AS r WHERE r.seq = e.seq)
    AND NOT EXISTS (SELECT 1 FROM deliveries AS d WHERE d.seq = e.seq)
FROM events AS e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2

-- :name forget_events
DELETE FROM events WHERE seq = ANY($1::bigint[])

-- :name forget_blocked
DELETE FROM blocked_ids WHERE created_at_ns < $1

-- :name forget_deleted
DELETE FROM deleted_addresses WHERE through_ns < $1 AND NOT is_pending

-- :name keep_events
INSERT INTO kept_events (seq)
SELECT seq FROM events WHERE seq > $1 AND seq <= $2 AND raw IS NOT NULL AND expiration_s IS NULL

-- :name kept_through
SELECT count(*), max(seq) FROM (SELECT seq FROM kept_events WHERE seq > $1 ORDER BY seq LIMIT $2) AS kept

-- :name forget_kept
DELETE FROM kept_events WHERE seq = ANY($1::bigint[])

-- :name contents
SELECT raw, content_digest FROM events
WHERE seq > $1 AND seq <= $2 AND expiration_s IS NULL AND (raw IS NOT NULL OR content_digest IS NOT NULL) ORDER BY seq

-- :name events_after
SELECT seq, raw, mesh FROM events WHERE seq > $1 AND raw IS NOT NULL ORDER BY seq LIMIT $2

-- :name clear_derived
TRUNCATE event_terms, current_events, fenced_events

-- :name feed_journal
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal WHERE seq > $1 ORDER BY seq LIMIT $2

-- :name feed_deliveries
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE seq > $1 AND (type = 'message.accepted' OR type LIKE 'delivery.%') ORDER BY seq LIMIT $2

-- :name feed_locks
SELECT seq, at_ns, type, mesh, actor, ref, body FROM journal
WHERE seq > $1 AND type IN (
    'lock.run_started', 'lock.acquired', 'lock.renewed', 'lock.released', 'lock.taken_over', 'lock.expired', 'lock.broken'
) ORDER BY seq LIMIT $2

-- :name feed_events
SELECT j.seq, j.at_ns, j.type, j.mesh, j.ref AS id, j.actor AS pubkey, e.kind, e.created_at_ns,
    'ed25519:' || encode(e.recipient, 'hex') AS recipient, e.expiration_s, e.raw AS event
FROM journal AS j JOIN events AS e ON e.seq = j.seq
WHERE j.seq > $1 AND j.type IN ('event.accepted', 'message.accepted', 'confirmation.accepted')
ORDER BY j.seq LIMIT $2
