-- :name insert_events
INSERT INTO events (seq, id, pubkey, kind, created_at_ns, mesh, recipient, expiration_s, address, raw) VALUES

-- :name insert_terms
INSERT INTO event_terms (term, seq) VALUES

-- :name insert_current
INSERT INTO current_events (address, created_at_ns, id, event_seq) VALUES

-- :name keep_larger
ON CONFLICT (address) DO UPDATE SET created_at_ns = excluded.created_at_ns, id = excluded.id,
event_seq = excluded.event_seq WHERE (excluded.created_at_ns, excluded.id) > (created_at_ns, id)

-- :name insert_ids
INSERT INTO event_ids (id_prefix, seq) VALUES

-- :name index_ids
INSERT INTO event_ids (id_prefix, seq) SELECT substr(id, 1, 8), seq FROM events
WHERE seq > (SELECT indexed_through FROM index_state) ORDER BY 1, 2

-- :name index_all_ids
INSERT INTO event_ids (id_prefix, seq) SELECT substr(id, 1, 8), seq FROM events ORDER BY 1, 2

-- :name clear_ids
DELETE FROM event_ids

-- :name walk_ids
SELECT count(*) FROM event_ids

-- :name seq_of_prefix
SELECT seq FROM event_ids WHERE id_prefix = ?

-- :name indexed_ids
SELECT e.id, e.seq FROM carray(?) AS c CROSS JOIN event_ids AS i ON i.id_prefix = substr(c.value, 1, 8)
CROSS JOIN events AS e ON e.seq = i.seq AND e.id = c.value

-- :name from_ids
-- Indexed or not; a prefix may belong to another id.
events AS e WHERE e.seq IN (
    SELECT i.seq FROM carray(:keys) AS c CROSS JOIN event_ids AS i ON i.id_prefix = substr(c.value, 1, 8)
    UNION ALL
    SELECT seq FROM events WHERE seq > (SELECT indexed_through FROM index_state) AND id IN (SELECT value FROM carray(:keys))
) AND e.id IN (SELECT value FROM carray(:keys))

-- :name known_ids
SELECT e.id, e.seq FROM

-- :name visible
    e.raw IS NOT NULL
    AND (e.expiration_s IS NULL OR e.expiration_s > :now_s)
    AND (:meshes IS NULL OR e.mesh IN (SELECT value FROM json_each(:meshes)))
    AND (e.recipient IS NULL OR e.recipient = :node OR e.pubkey = :node OR (:former IS NOT NULL AND EXISTS (
        SELECT 1 FROM json_each(:former) WHERE unhex(value) IN (e.recipient, e.pubkey))))

-- :name wanted
    AND (:ids IS NULL OR e.id IN (SELECT unhex(value) FROM json_each(:ids)))
    AND (:authors IS NULL OR e.pubkey IN (SELECT unhex(value) FROM json_each(:authors)))
    AND (:kinds IS NULL OR e.kind IN (SELECT value FROM json_each(:kinds)))
    AND (:mesh IS NULL OR e.mesh = :mesh)
    AND (:since_ns IS NULL OR e.created_at_ns >= :since_ns)
    AND (:until_ns IS NULL OR e.created_at_ns <= :until_ns)

-- :name from_one_term
event_terms AS t CROSS JOIN events AS e ON e.seq = t.seq
WHERE t.term = :term AND t.seq > :low AND t.seq <= :high AND

-- :name from_terms
events AS e
WHERE e.seq IN (
    SELECT seq FROM event_terms WHERE term IN (SELECT value FROM carray(:terms)) AND seq > :low AND seq <= :high) AND

-- :name within
AND e.seq > :low AND e.seq <= :high AND

-- :name from_all
events AS e
WHERE e.seq > :low AND e.seq <= :high AND

-- :name unindexed_of_address
events AS e
WHERE e.seq > :low AND e.seq <= :high AND e.address = :term AND

-- :name event_keys
SELECT e.created_at_ns, e.id FROM events AS e WHERE e.seq > :low AND e.seq <= :high

-- :name count_entries
SELECT count(*) FROM (
    SELECT 1 FROM event_terms WHERE term IN (SELECT value FROM carray(?)) AND seq > ? AND seq <= ? LIMIT ?)

-- :name current_of
SELECT event_seq FROM current_events WHERE address = ?

-- :name current_of_all
SELECT c.address, c.event_seq, c.created_at_ns, c.id
FROM carray(?) AS a CROSS JOIN current_events AS c ON c.address = a.value

-- :name insert_fenced
INSERT INTO fenced_events (event_seq, mesh, resource, token) VALUES (?, ?, ?, ?)

-- :name remove_fenced
DELETE FROM fenced_events WHERE event_seq = ?

-- :name newest_fenced
FROM fenced_events AS f CROSS JOIN events AS e ON e.seq = f.event_seq
WHERE f.mesh = :mesh AND f.resource = :resource AND

-- :name largest_of_address
-- An erased version hides the older ones.
FROM events AS e WHERE e.address = :term AND (e.is_erased OR

-- :name expired
SELECT seq FROM events WHERE expiration_s <= ? AND raw IS NOT NULL LIMIT ?

-- :name content_rows
SELECT e.seq, lower(hex(e.id)), 'ed25519:' || lower(hex(e.pubkey)), e.kind, e.created_at_ns, e.mesh,
    iif(e.recipient IS NULL, NULL, 'ed25519:' || lower(hex(e.recipient))), e.address, e.raw, e.content_digest, e.is_erased
FROM

-- :name of_seqs
carray(?) AS c CROSS JOIN events AS e ON e.seq = c.value

-- :name of_range
events AS e WHERE e.seq > ? AND e.seq <= ? ORDER BY e.seq

-- :name of_address
events AS e WHERE e.address = ? AND e.created_at_ns <= ? AND NOT e.is_erased
ORDER BY e.created_at_ns DESC, e.id DESC LIMIT ?

-- :name empty_event
UPDATE events SET raw = NULL, content_digest = ?2, is_erased = ?3 WHERE seq = ?1

-- :name remove_term
DELETE FROM event_terms WHERE term = ? AND seq = ?

-- :name remove_current
DELETE FROM current_events WHERE address = ? AND event_seq = ?

-- :name next_current
INSERT INTO current_events (address, created_at_ns, id, event_seq)
SELECT e.address, e.created_at_ns, e.id, e.seq FROM events AS e
WHERE e.address = ?1 AND (e.raw IS NOT NULL OR e.is_erased)
AND NOT EXISTS (SELECT 1 FROM current_events WHERE address = ?1)
ORDER BY e.created_at_ns DESC, e.id DESC LIMIT 1

-- :name erased_versions
SELECT address, created_at_ns, id, seq FROM events WHERE address IS NOT NULL AND is_erased

-- :name has_tombstones
SELECT EXISTS (SELECT 1 FROM blocked_ids) OR EXISTS (SELECT 1 FROM deleted_addresses);

-- :name blocked_ids
SELECT lower(hex(b.id)), 'ed25519:' || lower(hex(b.pubkey)) FROM carray(?) AS c CROSS JOIN blocked_ids AS b ON b.id = c.value

-- :name block_id
INSERT INTO blocked_ids (id, pubkey, created_at_ns) VALUES (?, ?, ?)
ON CONFLICT (id, pubkey) DO UPDATE SET created_at_ns = max(created_at_ns, excluded.created_at_ns)

-- :name deleted_addresses
SELECT d.address, d.through_ns FROM carray(?) AS c CROSS JOIN deleted_addresses AS d ON d.address = c.value

-- :name delete_address
INSERT INTO deleted_addresses (address, through_ns, is_pending) VALUES (?, ?, ?)
ON CONFLICT (address) DO UPDATE SET through_ns = max(through_ns, excluded.through_ns),
is_pending = is_pending OR excluded.is_pending

-- :name finish_address
UPDATE deleted_addresses SET is_pending = 0 WHERE address = ?

-- :name pending_address
SELECT address, through_ns FROM deleted_addresses WHERE is_pending LIMIT 1

-- :name prunable
SELECT e.seq FROM events AS e WHERE e.seq > :low AND e.seq <= :high AND e.expiration_s IS NULL AND

-- :name releasable
SELECT e.seq FROM kept_events AS k CROSS JOIN events AS e ON e.seq = k.seq
WHERE k.seq > :low AND k.seq <= :high AND e.expiration_s IS NULL AND

-- :name not_needed
    e.raw IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM current_events AS c WHERE c.address = e.address AND c.event_seq = e.seq)
    AND NOT EXISTS (
        SELECT 1 FROM fenced_events AS f WHERE f.event_seq = e.seq AND NOT EXISTS (
            SELECT 1 FROM fenced_events AS later WHERE later.mesh = f.mesh AND later.resource = f.resource
            AND (later.token, later.event_seq) > (f.token, f.event_seq)))
    AND NOT EXISTS (
        SELECT 1 FROM deliveries AS d WHERE d.seq = e.seq
        AND (d.state IN ('queued', 'sent', 'rejected', 'dead') OR d.closed_at_ns >= :horizon_ns))
    AND NOT EXISTS (SELECT 1 FROM waiting_confirmations AS w WHERE w.seq = e.seq)

-- :name among
SELECT e.seq FROM carray(:seqs) AS c CROSS JOIN events AS e ON e.seq = c.value WHERE

-- :name oldest_of_mesh
SELECT e.seq, octet_length(e.raw)
FROM (SELECT seq FROM event_terms WHERE term = :term ORDER BY seq LIMIT :limit) AS t
CROSS JOIN events AS e ON e.seq = t.seq WHERE

-- :name events_of_mesh
SELECT e.seq, e.kind, e.created_at_ns, iif(e.address IS NULL, 0, (
    SELECT count(*) FROM (
        SELECT 1 FROM events AS newer WHERE newer.address = e.address AND newer.raw IS NOT NULL
        AND (newer.created_at_ns, newer.id) > (e.created_at_ns, e.id) LIMIT ?4)))
FROM event_terms AS t CROSS JOIN events AS e ON e.seq = t.seq
WHERE t.term = ?1 AND t.seq > ?2 ORDER BY t.seq LIMIT ?3

-- :name count_usage
INSERT INTO mesh_usage (mesh, events, bytes) VALUES (?, ?, ?)
ON CONFLICT (mesh) DO UPDATE SET events = events + excluded.events, bytes = bytes + excluded.bytes

-- :name usage_of
SELECT events, bytes FROM mesh_usage WHERE mesh = ?

-- :name all_usage
SELECT mesh, sum(events), sum(bytes) FROM (
    SELECT mesh, events, bytes FROM mesh_usage
    UNION ALL
    SELECT mesh, 1, octet_length(raw) FROM events
    WHERE seq > (SELECT indexed_through FROM index_state) AND raw IS NOT NULL) GROUP BY mesh

-- :name count_unindexed
INSERT INTO mesh_usage (mesh, events, bytes)
SELECT mesh, count(*), sum(octet_length(raw)) FROM events
WHERE seq > (SELECT indexed_through FROM index_state) AND raw IS NOT NULL GROUP BY mesh
ON CONFLICT (mesh) DO UPDATE SET events = events + excluded.events, bytes = bytes + excluded.bytes

-- :name indexed_through
SELECT indexed_through FROM index_state

-- :name mark_indexed
UPDATE index_state SET indexed_through = (SELECT coalesce(max(seq), 0) FROM events)

-- :name table_sizes
SELECT coalesce(s.tbl_name, d.name), sum(d.pgsize) FROM dbstat AS d LEFT JOIN sqlite_schema AS s ON s.name = d.name
WHERE d.aggregate = 1 GROUP BY 1

-- :name begin_mesh_erasure
INSERT INTO mesh_erasures (mesh, actor, through_seq) VALUES (?, ?, 0)

-- :name pending_mesh
SELECT mesh, actor, through_seq FROM mesh_erasures LIMIT 1

-- :name seqs_of_mesh
SELECT seq FROM events WHERE mesh = ? AND seq > ? AND seq <= ? AND NOT is_erased

-- :name note_mesh_erased
UPDATE mesh_erasures SET through_seq = ?2 WHERE mesh = ?1

-- :name end_mesh_erasure
DELETE FROM mesh_erasures WHERE mesh = ?

-- :name known_events
SELECT e.seq, e.created_at_ns, e.raw IS NULL AND e.seq <= (SELECT pruned_through FROM journal_state)
    AND NOT (e.is_erased AND e.address IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM message_records AS r WHERE r.seq = e.seq)
    AND NOT EXISTS (SELECT 1 FROM deliveries AS d WHERE d.seq = e.seq)
FROM events AS e WHERE e.seq > ? ORDER BY e.seq LIMIT ?

-- :name forget_id
DELETE FROM event_ids
WHERE id_prefix = (SELECT substr(id, 1, 8) FROM events WHERE events.seq = ?1) AND event_ids.seq = ?1

-- :name forget_event
DELETE FROM events WHERE seq = ?

-- :name forget_blocked
DELETE FROM blocked_ids WHERE created_at_ns < ?

-- :name forget_deleted
DELETE FROM deleted_addresses WHERE through_ns < ? AND NOT is_pending

-- :name keep_events
INSERT INTO kept_events (seq)
SELECT seq FROM events WHERE seq > ? AND seq <= ? AND raw IS NOT NULL AND expiration_s IS NULL

-- :name kept_through
SELECT count(*), max(seq) FROM (SELECT seq FROM kept_events WHERE seq > ? ORDER BY seq LIMIT ?)

-- :name forget_kept
DELETE FROM kept_events WHERE seq = ?

-- :name contents
SELECT raw, content_digest FROM events
WHERE seq > ? AND seq <= ? AND expiration_s IS NULL AND (raw IS NOT NULL OR content_digest IS NOT NULL) ORDER BY seq

-- :name events_after
SELECT seq, raw, mesh FROM events WHERE seq > ? AND raw IS NOT NULL ORDER BY seq LIMIT ?

-- :name clear_terms
DELETE FROM event_terms

-- :name clear_current
DELETE FROM current_events

-- :name clear_fenced
DELETE FROM fenced_events

-- :name has_table
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?

-- :name salvage
SELECT seq, raw FROM events NOT INDEXED WHERE seq > ? ORDER BY seq

-- :name moved_to
SELECT target, place FROM moved_to

-- :name set_moved
INSERT INTO moved_to (one, target, place) VALUES (1, ?, ?) ON CONFLICT (one) DO NOTHING

-- :name clear_moved
DELETE FROM moved_to

-- :name columns_of
SELECT name, type FROM pragma_table_info(?)
