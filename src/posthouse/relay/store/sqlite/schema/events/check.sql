-- :name records_without_event
SELECT j.seq FROM journal AS j LEFT JOIN events AS e ON e.seq = j.seq
WHERE j.type IN ('event.accepted', 'message.accepted', 'confirmation.accepted')
AND (e.seq IS NULL OR lower(hex(e.id)) IS NOT j.ref OR 'ed25519:' || lower(hex(e.pubkey)) IS NOT j.actor
    OR e.mesh IS NOT j.mesh)
LIMIT 20

-- :name events_without_record
SELECT e.seq FROM events AS e LEFT JOIN journal AS j ON j.seq = e.seq
WHERE e.seq > (SELECT pruned_through FROM journal_state)
AND (j.seq IS NULL OR j.type NOT IN ('event.accepted', 'message.accepted', 'confirmation.accepted'))
LIMIT 20

-- :name events_twice
SELECT max(seq) FROM events GROUP BY id HAVING count(*) > 1 LIMIT 20

-- :name contents
SELECT seq, lower(hex(id)), 'ed25519:' || lower(hex(pubkey)), kind, created_at_ns, mesh,
    iif(recipient IS NULL, NULL, 'ed25519:' || lower(hex(recipient))), expiration_s, address, raw
FROM events WHERE raw IS NOT NULL

-- :name id_differences
SELECT * FROM (
    SELECT e.seq FROM events AS e WHERE e.seq <= (SELECT indexed_through FROM index_state)
    AND NOT EXISTS (SELECT 1 FROM event_ids AS i WHERE i.id_prefix = substr(e.id, 1, 8) AND i.seq = e.seq)
    UNION ALL
    SELECT i.seq FROM event_ids AS i LEFT JOIN events AS e ON e.seq = i.seq
    WHERE substr(e.id, 1, 8) IS NOT i.id_prefix OR e.seq > (SELECT indexed_through FROM index_state)
) LIMIT 20

-- :name all_terms
SELECT term, seq FROM event_terms

-- :name current_without_event
SELECT c.event_seq FROM current_events AS c LEFT JOIN events AS e ON e.seq = c.event_seq
WHERE e.seq IS NULL OR (e.raw IS NULL AND NOT e.is_erased) OR e.address IS NOT c.address OR e.id IS NOT c.id
    OR e.created_at_ns IS NOT c.created_at_ns
LIMIT 20

-- :name kept_without_content
SELECT k.seq FROM kept_events AS k LEFT JOIN events AS e ON e.seq = k.seq
WHERE e.raw IS NULL OR e.expiration_s IS NOT NULL OR k.seq > (SELECT pruned_through FROM journal_state)
LIMIT 20

-- :name fenced_differences
WITH expected AS (
    SELECT e.seq AS event_seq, e.mesh, t.value ->> 1 AS resource, CAST(t.value ->> 2 AS INTEGER) AS token
    FROM events AS e JOIN json_each(CAST(e.raw AS TEXT), '$.tags') AS t
    WHERE e.address IS NOT NULL AND e.raw IS NOT NULL AND t.value ->> 0 = 'fence'
)
SELECT event_seq FROM (
    SELECT * FROM (SELECT * FROM expected EXCEPT SELECT event_seq, mesh, resource, token FROM fenced_events)
    UNION
    SELECT * FROM (SELECT event_seq, mesh, resource, token FROM fenced_events EXCEPT SELECT * FROM expected)
) LIMIT 20

-- :name events_above_current
SELECT e.seq FROM events AS e LEFT JOIN current_events AS c ON c.address = e.address
WHERE e.address IS NOT NULL AND (e.raw IS NOT NULL OR e.is_erased)
AND (c.address IS NULL OR (e.created_at_ns, e.id) > (c.created_at_ns, c.id))
LIMIT 20

-- :name deleted_with_content
SELECT e.seq FROM events AS e WHERE e.raw IS NOT NULL AND (
    e.is_erased
    OR EXISTS (SELECT 1 FROM blocked_ids AS b WHERE b.id = e.id AND b.pubkey = e.pubkey)
    OR EXISTS (
        SELECT 1 FROM deleted_addresses AS d
        WHERE d.address = e.address AND d.through_ns >= e.created_at_ns AND NOT d.is_pending))
LIMIT 20

-- :name erased_without_mark
SELECT e.seq FROM journal AS j JOIN json_each(j.body, '$.seqs') AS s JOIN events AS e ON e.seq = s.value
WHERE j.type = 'content.erased' AND NOT e.is_erased
LIMIT 20

-- :name wrong_usage
SELECT mesh FROM (
    SELECT mesh, count(*) AS events, sum(octet_length(raw)) AS bytes FROM events
    WHERE raw IS NOT NULL AND seq <= (SELECT indexed_through FROM index_state) GROUP BY mesh
) AS f FULL JOIN mesh_usage AS u USING (mesh)
WHERE coalesce(f.events, 0) != coalesce(u.events, 0) OR coalesce(f.bytes, 0) != coalesce(u.bytes, 0)
LIMIT 20
