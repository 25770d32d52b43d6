-- :name insert_events
INSERT INTO events (seq, id, pubkey, kind, created_at_ns, mesh, recipient, expiration_s, address, raw) VALUES

-- :name insert_terms
INSERT INTO event_terms (term, seq) VALUES

-- :name insert_current
INSERT INTO current_events (address, created_at_ns, id, event_seq) VALUES

-- :name keep_larger
ON CONFLICT (address) DO UPDATE SET created_at_ns = excluded.created_at_ns, id = excluded.id,
event_seq = excluded.event_seq WHERE (excluded.created_at_ns, excluded.id) > (created_at_ns, id)

-- :name known_ids
SELECT e.id, e.seq FROM carray(?) AS c CROSS JOIN events AS e INDEXED BY events_by_id
ON substr(e.id, 1, 8) = substr(c.value, 1, 8) AND e.id = c.value

-- :name walk_ids
SELECT count(*) FROM events INDEXED BY events_by_id

-- :name event_by_id
SELECT seq FROM events WHERE substr(id, 1, 8) = substr(?1, 1, 8) AND id = ?1

-- :name visible
    e.raw IS NOT NULL
    AND (e.expiration_s IS NULL OR e.expiration_s > :now_s)
    AND (:meshes IS NULL OR e.mesh IN (SELECT value FROM json_each(:meshes)))
    AND (e.recipient IS NULL OR e.recipient = :node OR e.pubkey = :node)

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

-- :name from_ids
events AS e
WHERE e.seq IN (
    SELECT k.seq FROM carray(:keys) AS c CROSS JOIN events AS k INDEXED BY events_by_id
    ON substr(k.id, 1, 8) = substr(c.value, 1, 8) AND k.id = c.value AND k.seq > :low AND k.seq <= :high) AND

-- :name from_all
events AS e
WHERE e.seq > :low AND e.seq <= :high AND

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
FROM event_terms AS t CROSS JOIN events AS e ON e.seq = t.seq WHERE t.term = :term AND

-- :name expired
SELECT seq, address FROM events WHERE expiration_s <= ? AND raw IS NOT NULL LIMIT ?

-- :name empty_event
UPDATE events SET raw = NULL WHERE seq = ?

-- :name raw_of
SELECT raw, mesh FROM events WHERE seq = ?

-- :name remove_term
DELETE FROM event_terms WHERE term = ? AND seq = ?

-- :name remove_current
DELETE FROM current_events WHERE address = ? AND event_seq = ?

-- :name next_current
INSERT INTO current_events (address, created_at_ns, id, event_seq)
SELECT e.address, e.created_at_ns, e.id, e.seq FROM event_terms AS t CROSS JOIN events AS e ON e.seq = t.seq
WHERE t.term = ?1 AND NOT EXISTS (SELECT 1 FROM current_events WHERE address = ?1)
ORDER BY e.created_at_ns DESC, e.id DESC LIMIT 1

-- :name prunable
SELECT e.seq, e.address FROM events AS e WHERE e.seq > :low AND e.seq <= :high AND

-- :name releasable
SELECT e.seq, e.address FROM kept_events AS k CROSS JOIN events AS e ON e.seq = k.seq
WHERE k.seq > :low AND k.seq <= :high AND

-- :name not_needed
    e.raw IS NOT NULL AND e.expiration_s IS NULL
    AND NOT EXISTS (SELECT 1 FROM current_events AS c WHERE c.address = e.address AND c.event_seq = e.seq)
    AND NOT EXISTS (
        SELECT 1 FROM fenced_events AS f WHERE f.event_seq = e.seq AND NOT EXISTS (
            SELECT 1 FROM fenced_events AS later WHERE later.mesh = f.mesh AND later.resource = f.resource
            AND (later.token, later.event_seq) > (f.token, f.event_seq)))
    AND NOT EXISTS (
        SELECT 1 FROM deliveries AS d WHERE d.seq = e.seq
        AND (d.state IN ('queued', 'sent', 'rejected', 'dead') OR d.closed_at_ns >= :horizon_ns))
    AND NOT EXISTS (SELECT 1 FROM waiting_confirmations AS w WHERE w.seq = e.seq)

-- :name keep_events
INSERT INTO kept_events (seq)
SELECT seq FROM events WHERE seq > ? AND seq <= ? AND raw IS NOT NULL AND expiration_s IS NULL

-- :name kept_through
SELECT count(*), max(seq) FROM (SELECT seq FROM kept_events WHERE seq > ? ORDER BY seq LIMIT ?)

-- :name forget_kept
DELETE FROM kept_events WHERE seq = ?

-- :name contents
SELECT raw FROM events WHERE seq > ? AND seq <= ? AND raw IS NOT NULL AND expiration_s IS NULL ORDER BY seq

-- :name events_after
SELECT seq, raw, mesh FROM events WHERE seq > ? AND raw IS NOT NULL ORDER BY seq LIMIT ?

-- :name clear_terms
DELETE FROM event_terms

-- :name clear_current
DELETE FROM current_events

-- :name clear_fenced
DELETE FROM fenced_events

-- :name has_journal
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'epochs'

-- :name salvage
SELECT seq, raw FROM events NOT INDEXED WHERE seq > ? ORDER BY seq
