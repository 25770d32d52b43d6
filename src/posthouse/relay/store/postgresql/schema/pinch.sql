-- :name insert_envelopes
INSERT INTO pinch_envelopes (seq, id, sender, message_id, message_type, accepted_at_ns, envelope)
SELECT * FROM unnest(
    $1::bigint[], $2::bytea[], $3::bigint[], $4::bytea[], $5::integer[], $6::bigint[], $7::bytea[])

-- :name find_known
SELECT EXISTS (
    SELECT 1 FROM pinch_envelopes
    WHERE message_id = $1 AND message_id != ''::bytea AND sender = $2 AND accepted_at_ns >= $3)

-- :name find_delivery
SELECT d.id, d.seq, d.state, coalesce(d.was_stored, true), d.opened_at_ns, d.sender
FROM pinch_envelopes AS p JOIN deliveries AS d ON d.seq = p.seq AND d.mailbox = $1
WHERE p.message_id = $2 AND p.message_id != ''::bytea AND p.sender = $3
ORDER BY p.seq DESC LIMIT 1

-- :name message_ids
SELECT message_id FROM pinch_envelopes WHERE seq = ANY($1::bigint[]) ORDER BY seq

-- :name emptiable
SELECT p.seq FROM pinch_envelopes AS p JOIN deliveries AS d ON d.seq = p.seq
WHERE p.envelope IS NOT NULL AND d.state IN ('confirmed', 'expired', 'purged', 'blocked') LIMIT $1

-- :name empty
UPDATE pinch_envelopes SET envelope = NULL WHERE seq = ANY($1::bigint[])

-- :name over
SELECT p.seq FROM pinch_envelopes AS p JOIN deliveries AS d ON d.seq = p.seq
WHERE p.accepted_at_ns < $1 AND d.state IN ('confirmed', 'expired', 'purged', 'blocked')
ORDER BY p.accepted_at_ns LIMIT $2

-- :name delete_deliveries
DELETE FROM deliveries WHERE seq = ANY($1::bigint[])

-- :name delete_envelopes
DELETE FROM pinch_envelopes WHERE seq = ANY($1::bigint[])

-- :name page
SELECT d.position, d.seq, d.id, coalesce(d.was_stored, true), d.sends + 1, p.message_type, p.message_id != ''::bytea,
    p.envelope
FROM deliveries AS d JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = $1 AND d.closed_at_ns IS NULL AND d.position > $2 AND d.opened_at_ns >= $3 AND p.envelope IS NOT NULL
AND p.read_position IS DISTINCT FROM d.position
ORDER BY d.position LIMIT $4

-- :name open_kinds
SELECT d.seq, d.sender, p.message_type, p.message_id != ''::bytea
FROM deliveries AS d JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = $1 AND d.closed_at_ns IS NULL AND d.opened_at_ns >= $2 AND p.envelope IS NOT NULL
AND p.read_position IS DISTINCT FROM d.position
ORDER BY d.position

-- :name page_of_seqs
SELECT d.position, d.seq, d.id, coalesce(d.was_stored, true), d.sends + 1, p.message_type, p.message_id != ''::bytea,
    p.envelope
FROM deliveries AS d JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = $1 AND d.seq = ANY($2::bigint[])
ORDER BY d.position

-- :name pending
SELECT
    count(*) FILTER (WHERE p.read_position IS DISTINCT FROM d.position),
    count(*) FILTER (WHERE p.read_position = d.position),
    (SELECT count(*) FROM waiting_confirmations WHERE mailbox = $1)
FROM deliveries AS d JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = $1 AND d.closed_at_ns IS NULL AND d.opened_at_ns >= $2 AND p.envelope IS NOT NULL

-- :name sent_controls
SELECT d.seq FROM deliveries AS d JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE d.mailbox = $1 AND d.closed_at_ns IS NULL AND d.state = 'sent' AND d.sender = $2
AND (p.message_type != 4 OR p.message_id = ''::bytea)

-- :name mark_read
UPDATE pinch_envelopes AS p SET read_position = d.position
FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox
WHERE m.mesh = $1 AND m.node = $2 AND d.seq = ANY($3::bigint[]) AND d.closed_at_ns IS NULL AND p.seq = d.seq

-- :name read_rows
SELECT d.seq, d.id, d.sends
FROM mailboxes AS m JOIN deliveries AS d ON d.mailbox = m.mailbox JOIN pinch_envelopes AS p ON p.seq = d.seq
WHERE m.mesh = $1 AND m.node = $2 AND d.closed_at_ns IS NULL AND p.read_position = d.position
ORDER BY d.position

-- :name forget_attempts
UPDATE deliveries SET timeouts = 0, flaps = 0
WHERE mailbox = (SELECT mailbox FROM mailboxes WHERE mesh = $1 AND node = $2) AND closed_at_ns IS NULL
AND (timeouts > 0 OR flaps > 0)

-- :name confirmation_page
SELECT seq, items FROM waiting_confirmations WHERE mailbox = $1 AND seq > $2 ORDER BY seq LIMIT $3
