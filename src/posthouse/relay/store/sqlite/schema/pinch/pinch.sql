-- :name insert_envelopes
INSERT INTO pinch_envelopes (seq, id, sender, message_id, message_type, accepted_at_ns, envelope) VALUES

-- :name find_known
SELECT 1 FROM pinch_envelopes WHERE message_id = ? AND message_id != x'' AND sender = ? AND accepted_at_ns >= ? LIMIT 1

-- :name find_delivery
SELECT lower(hex(d.id)), d.seq, d.state, coalesce(d.was_stored, 1), d.opened_at_ns, d.sender
FROM pinch_envelopes AS p CROSS JOIN deliveries AS d ON d.seq = p.seq AND d.mailbox = ?1
WHERE p.message_id = ?2 AND p.message_id != x'' AND p.sender = ?3
ORDER BY p.seq DESC LIMIT 1

-- :name message_ids
SELECT message_id FROM pinch_envelopes WHERE seq IN (SELECT value FROM carray(?)) ORDER BY seq

-- :name emptiable
SELECT p.seq FROM pinch_envelopes AS p INDEXED BY pinch_envelopes_full CROSS JOIN deliveries AS d ON d.seq = p.seq
WHERE p.envelope IS NOT NULL AND d.state IN ('confirmed', 'expired', 'purged', 'blocked') LIMIT ?

-- :name empty
UPDATE pinch_envelopes SET envelope = NULL WHERE seq IN (SELECT value FROM carray(?))

-- :name over
SELECT p.seq FROM pinch_envelopes AS p CROSS JOIN deliveries AS d ON d.seq = p.seq
WHERE p.accepted_at_ns < ? AND d.state IN ('confirmed', 'expired', 'purged', 'blocked')
ORDER BY p.accepted_at_ns LIMIT ?

-- :name delete_deliveries
DELETE FROM deliveries WHERE seq IN (SELECT value FROM carray(?))

-- :name delete_envelopes
DELETE FROM pinch_envelopes WHERE seq IN (SELECT value FROM carray(?))

-- :name queue_id_of
SELECT mailbox FROM mailboxes WHERE mesh = ? AND node = ?

-- :name page
SELECT d.position, d.seq, lower(hex(d.id)), coalesce(d.was_stored, 1), d.sends + 1, p.message_type, p.message_id != x'',
    p.envelope
FROM deliveries AS d CROSS JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = ? AND d.closed_at_ns IS NULL AND d.position > ? AND d.opened_at_ns >= ? AND p.envelope IS NOT NULL
AND p.read_position IS NOT d.position
ORDER BY d.position LIMIT ?

-- :name open_kinds
SELECT d.seq, d.sender, p.message_type, p.message_id != x''
FROM deliveries AS d CROSS JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = ? AND d.closed_at_ns IS NULL AND d.opened_at_ns >= ? AND p.envelope IS NOT NULL
AND p.read_position IS NOT d.position
ORDER BY d.position

-- :name page_of_seqs
SELECT d.position, d.seq, lower(hex(d.id)), coalesce(d.was_stored, 1), d.sends + 1, p.message_type, p.message_id != x'',
    p.envelope
FROM deliveries AS d CROSS JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = ? AND d.seq IN (SELECT value FROM carray(?))
ORDER BY d.position

-- :name pending
SELECT coalesce(sum(p.read_position IS NOT d.position), 0),
    coalesce(sum(p.read_position IS d.position), 0)
FROM deliveries AS d CROSS JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = ? AND d.closed_at_ns IS NULL AND d.opened_at_ns >= ? AND p.envelope IS NOT NULL

-- :name pending_confirmations
SELECT count(*) FROM waiting_confirmations WHERE mailbox = ?

-- :name sent_controls
SELECT d.seq FROM deliveries AS d CROSS JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = ? AND d.closed_at_ns IS NULL AND d.state = 'sent' AND d.sender = ?
AND (p.message_type != 4 OR p.message_id = x'')

-- :name mark_read
UPDATE pinch_envelopes SET read_position = d.position
FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox
WHERE m.mesh = ? AND m.node = ? AND d.seq IN (SELECT value FROM carray(?)) AND d.closed_at_ns IS NULL
AND pinch_envelopes.seq = d.seq

-- :name read_rows
SELECT d.seq, lower(hex(d.id)), d.sends
FROM mailboxes AS m CROSS JOIN deliveries AS d ON d.mailbox = m.mailbox CROSS JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE m.mesh = ? AND m.node = ? AND d.closed_at_ns IS NULL AND p.read_position = d.position
ORDER BY d.position

-- :name forget_attempts
UPDATE deliveries SET timeouts = 0, flaps = 0
WHERE mailbox = (SELECT mailbox FROM mailboxes WHERE mesh = ? AND node = ?) AND closed_at_ns IS NULL
AND (timeouts > 0 OR flaps > 0)

-- :name confirmation_page
SELECT seq, items FROM waiting_confirmations WHERE mailbox = ? AND seq > ? ORDER BY seq LIMIT ?

-- :name deliveries_without_envelope
SELECT d.seq, m.node FROM deliveries AS d
JOIN mailboxes AS m ON m.mailbox = d.mailbox
LEFT JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.source = 'pinch' AND (
    p.seq IS NULL OR p.id != d.id OR p.sender != d.sender OR m.mesh != 'pinch'
    OR (p.envelope IS NULL AND d.state IN ('queued', 'sent', 'rejected', 'dead')))

-- :name envelopes_without_delivery
SELECT p.seq FROM pinch_envelopes AS p LEFT JOIN deliveries AS d ON d.seq = p.seq AND d.source = 'pinch'
WHERE d.seq IS NULL

-- :name envelopes
SELECT p.seq, lower(hex(p.id)), s.node, p.message_id, p.message_type, p.accepted_at_ns, p.envelope, r.node
FROM pinch_envelopes AS p JOIN mailboxes AS s ON s.mailbox = p.sender
JOIN deliveries AS d ON d.seq = p.seq JOIN mailboxes AS r ON r.mailbox = d.mailbox
ORDER BY p.seq

-- :name horizon
SELECT coalesce(min(seq), 0) FROM journal
