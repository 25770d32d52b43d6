-- :name queue_id_of
SELECT mailbox FROM mailboxes WHERE mesh = ? AND node = ?

-- :name rows_of_seqs
SELECT json_group_array(json_array(lower(hex(d.id)), d.seq, d.state, d.was_stored, d.opened_at_ns, d.sender))
FROM carray(?2) AS c CROSS JOIN deliveries AS d ON d.seq = c.value AND d.mailbox = ?1

-- :name receipt_rows
SELECT json_group_array(json_array(
    lower(hex(d.id)), d.seq, d.state, d.sender, json(iif(r.topic IS NULL, 'false', 'true')),
    json(iif(x.seq IS NULL, 'false', 'true'))))
FROM carray(?2) AS c CROSS JOIN deliveries AS d ON d.seq = c.value AND d.mailbox = ?1
CROSS JOIN message_records AS r ON r.seq = d.seq
LEFT JOIN receipts AS x ON x.seq = d.seq AND x.mailbox = d.mailbox

-- :name insert_receipts
INSERT INTO receipts (seq, mailbox, state, at_ms, reason) VALUES

-- :name confirm
UPDATE deliveries SET state = 'confirmed', closed_at_ns = ?, was_stored = coalesce(was_stored, 1)
WHERE mailbox = ? AND seq IN (SELECT value FROM carray(?))

-- :name open_among
SELECT json_group_array(json_array(seq, lower(hex(id)), coalesce(was_stored, 1))) FROM (
    SELECT seq, id, was_stored FROM deliveries
    WHERE mailbox = ? AND seq IN (SELECT value FROM carray(?)) AND closed_at_ns IS NULL ORDER BY position)

-- :name close
UPDATE deliveries SET state = ?, closed_at_ns = ?, reason = ?
WHERE mailbox = ? AND seq IN (SELECT value FROM carray(?))

-- :name shrink_queue
UPDATE mailboxes SET open_rows = open_rows - ?, parked_rows = parked_rows + ? WHERE mailbox = ?

-- :name mark_sent
UPDATE deliveries SET state = 'sent', sends = sends + 1, was_stored = coalesce(was_stored, ?),
sent_at_ns = coalesce(sent_at_ns, ?)
WHERE mailbox = ? AND seq IN (SELECT value FROM carray(?)) AND closed_at_ns IS NULL

-- :name count_timeouts
UPDATE deliveries SET timeouts = timeouts + 1
WHERE mailbox = ? AND seq IN (SELECT value FROM carray(?)) AND closed_at_ns IS NULL

-- :name count_flaps
UPDATE deliveries SET flaps = flaps + 1
WHERE mailbox = ? AND seq IN (SELECT value FROM carray(?)) AND closed_at_ns IS NULL

-- :name spent
SELECT seq, lower(hex(id)), sends FROM deliveries
WHERE mailbox = ? AND seq IN (SELECT value FROM carray(?)) AND closed_at_ns IS NULL
AND (timeouts >= ? OR flaps >= ?) ORDER BY position

-- :name expired_rows
SELECT json_group_array(json_array(seq, lower(hex(id)))) FROM (
    SELECT seq, id FROM deliveries
    WHERE mailbox = ?1 AND closed_at_ns IS NULL AND position < coalesce((
        SELECT position FROM deliveries
        WHERE mailbox = ?1 AND closed_at_ns IS NULL AND opened_at_ns >= ?2 ORDER BY position LIMIT 1), 9223372036854775807)
    ORDER BY position LIMIT ?3)

-- :name rows_of_sender
SELECT json_group_array(json_array(seq, lower(hex(id)))) FROM (
    SELECT seq, id FROM deliveries WHERE mailbox = ? AND closed_at_ns IS NULL AND sender = ? ORDER BY position)

-- :name unfinished_of_events
SELECT d.mailbox, m.mesh, m.node, d.seq, lower(hex(d.id)), d.state FROM deliveries AS d
JOIN mailboxes AS m ON m.mailbox = d.mailbox
WHERE d.seq IN (SELECT value FROM carray(?)) AND d.state IN ('queued', 'sent', 'rejected', 'dead')
ORDER BY d.mailbox, d.position

-- :name prune_records
UPDATE message_records SET history_available = 0 WHERE seq IN (SELECT value FROM carray(?))

-- :name purgeable
SELECT json_group_array(json_array(seq, lower(hex(id)), state)) FROM (
    SELECT seq, id, state FROM deliveries
    WHERE mailbox = ?1 AND state IN ('queued', 'sent', 'rejected', 'dead')
    AND (?2 IS NULL OR lower(hex(id)) IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
    ORDER BY position LIMIT ?4)

-- :name reopen
UPDATE deliveries SET state = 'queued', closed_at_ns = NULL, reason = NULL, position = ?, opened_at_ns = ?,
timeouts = 0, flaps = 0
WHERE mailbox = ? AND seq = ?

-- :name open_rows
SELECT open_rows FROM mailboxes WHERE mailbox = ?

-- :name next_records
SELECT r.seq, r.expires_at_ns, EXISTS (
    SELECT 1 FROM deliveries AS d WHERE d.seq = r.seq AND d.state IN ('queued', 'sent', 'rejected', 'dead'))
FROM message_records AS r WHERE r.seq > ? ORDER BY r.seq LIMIT ?

-- :name note_swept
UPDATE swept_records SET first_seen_through_ns = max(first_seen_through_ns, (
    SELECT max(first_seen_at_ns) FROM message_records WHERE seq IN (SELECT value FROM carray(?))))

-- :name delete_records
DELETE FROM message_records WHERE seq IN (SELECT value FROM carray(?))

-- :name delete_deliveries
DELETE FROM deliveries WHERE seq IN (SELECT value FROM carray(?))

-- :name delete_receipts
DELETE FROM receipts WHERE seq IN (SELECT value FROM carray(?))

-- :name delete_mentions
DELETE FROM mentions WHERE seq IN (SELECT value FROM carray(?))
