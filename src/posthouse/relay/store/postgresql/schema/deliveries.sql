-- :name insert_records
INSERT INTO message_records (
    seq, sender, from_agent, client_message_id, fingerprint, topic, to_agent, first_seen_at_ns, expires_at_ns)
SELECT * FROM unnest(
    $1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::bigint[], $9::bigint[])

-- :name insert_queued
INSERT INTO deliveries (seq, mailbox, id, sender, position, opened_at_ns)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[])

-- :name insert_deliveries
INSERT INTO deliveries (seq, mailbox, source, id, sender, position, state, opened_at_ns, closed_at_ns)
SELECT * FROM unnest(
    $1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[], $7::text[], $8::bigint[],
    $9::bigint[])

-- :name insert_mentions
INSERT INTO mentions (node, seq) SELECT * FROM unnest($1::text[], $2::bigint[])

-- :name insert_receipts
INSERT INTO receipts (seq, mailbox, state, at_ms, reason)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bytea[])

-- :name insert_gap
INSERT INTO gaps AS g (mailbox, topic, first_seq, last_seq, messages) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (mailbox, topic) DO UPDATE SET last_seq = excluded.last_seq, messages = g.messages + excluded.messages

-- :name close_gap
DELETE FROM gaps WHERE mailbox = $1 AND topic = $2 AND last_seq <= $3

-- :name shorten_gap
UPDATE gaps SET first_seq = $3::bigint + 1 WHERE mailbox = $1 AND topic = $2 AND first_seq <= $3

-- :name grow_queues
-- A queue may occur twice in a group, and ON CONFLICT changes a row once.
INSERT INTO mailboxes AS m (mesh, node, open_rows)
SELECT mesh, node, sum(count)::bigint FROM unnest($1::text[], $2::text[], $3::bigint[]) AS n (mesh, node, count)
GROUP BY mesh, node ORDER BY mesh, node
ON CONFLICT (mesh, node) DO UPDATE SET open_rows = m.open_rows + excluded.open_rows

-- :name find_queues
SELECT node, mailbox, open_rows FROM mailboxes WHERE mesh = $1 AND node = ANY($2::text[])

-- :name swept_through
SELECT first_seen_through_ns FROM swept_records

-- :name find_records
SELECT r.sender, r.from_agent, r.client_message_id, r.seq, e.id, r.fingerprint, r.first_seen_at_ns, r.history_available
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS k (sender, from_agent, client_message_id)
JOIN message_records AS r
    ON r.sender = k.sender AND r.from_agent = k.from_agent AND r.client_message_id = k.client_message_id
JOIN events AS e ON e.seq = r.seq

-- :name audience_version
SELECT version FROM audience_versions WHERE mesh = $1

-- :name blockers
SELECT node FROM blocks WHERE mesh = $1 AND blocked = $2

-- :name add_waiting_confirmation
INSERT INTO waiting_confirmations (seq, mailbox, ids, items) VALUES ($1, $2, $3, $4)

-- :name add_confirmation_ids
UPDATE mailboxes SET confirmation_ids = confirmation_ids + $2 WHERE mailbox = $1 RETURNING confirmation_ids

-- :name oldest_confirmations
SELECT seq, ids FROM waiting_confirmations WHERE mailbox = $1 ORDER BY seq LIMIT 64

-- :name drop_confirmations
WITH dropped AS (DELETE FROM waiting_confirmations WHERE mailbox = $1 AND seq <= $2 RETURNING ids)
UPDATE mailboxes SET confirmation_ids = confirmation_ids - (SELECT coalesce(sum(ids), 0) FROM dropped)::bigint
WHERE mailbox = $1

-- :name drop_waiting
WITH dropped AS (DELETE FROM waiting_confirmations WHERE seq = ANY($1::bigint[]) RETURNING mailbox, ids)
UPDATE mailboxes AS m SET confirmation_ids = m.confirmation_ids - d.ids
FROM (SELECT mailbox, sum(ids)::bigint AS ids FROM dropped GROUP BY mailbox) AS d WHERE d.mailbox = m.mailbox

-- :name queue_id_of
SELECT mailbox FROM mailboxes WHERE mesh = $1 AND node = $2

-- :name rows_of_ids
SELECT d.id, d.seq, d.state, d.was_stored, d.opened_at_ns, d.sender
FROM events AS e JOIN deliveries AS d ON d.seq = e.seq AND d.mailbox = $1
WHERE e.id = ANY($2::bytea[])

-- :name receipt_rows
SELECT d.id, d.seq, d.state, d.sender, r.topic IS NOT NULL, x.seq IS NOT NULL
FROM events AS e JOIN deliveries AS d ON d.seq = e.seq AND d.mailbox = $1
JOIN message_records AS r ON r.seq = d.seq
LEFT JOIN receipts AS x ON x.seq = d.seq AND x.mailbox = d.mailbox
WHERE e.id = ANY($2::bytea[])

-- :name confirm
UPDATE deliveries SET state = 'confirmed', closed_at_ns = $2, was_stored = coalesce(was_stored, true)
WHERE mailbox = $1 AND seq = ANY($3::bigint[])

-- :name open_among
SELECT seq, id, coalesce(was_stored, true) FROM deliveries
WHERE mailbox = $1 AND seq = ANY($2::bigint[]) AND closed_at_ns IS NULL ORDER BY position

-- :name close
UPDATE deliveries SET state = $2, closed_at_ns = $3, reason = $4 WHERE mailbox = $1 AND seq = ANY($5::bigint[])

-- :name shrink_queue
UPDATE mailboxes SET open_rows = open_rows - $2, parked_rows = parked_rows + $3 WHERE mailbox = $1

-- :name mark_sent
UPDATE deliveries SET state = 'sent', sends = sends + 1, was_stored = coalesce(was_stored, $2),
sent_at_ns = coalesce(sent_at_ns, $3)
WHERE mailbox = $1 AND seq = ANY($4::bigint[]) AND closed_at_ns IS NULL

-- :name count_timeouts
UPDATE deliveries SET timeouts = timeouts + 1 WHERE mailbox = $1 AND seq = ANY($2::bigint[]) AND closed_at_ns IS NULL

-- :name count_flaps
UPDATE deliveries SET flaps = flaps + 1 WHERE mailbox = $1 AND seq = ANY($2::bigint[]) AND closed_at_ns IS NULL

-- :name spent
SELECT seq, id, sends FROM deliveries
WHERE mailbox = $1 AND seq = ANY($2::bigint[]) AND closed_at_ns IS NULL AND (timeouts >= $3 OR flaps >= $4)
ORDER BY position

-- :name expired_rows
SELECT seq, id FROM deliveries
WHERE mailbox = $1 AND closed_at_ns IS NULL AND position < coalesce((
    SELECT position FROM deliveries
    WHERE mailbox = $1 AND closed_at_ns IS NULL AND opened_at_ns >= $2 ORDER BY position LIMIT 1), 9223372036854775807)
ORDER BY position LIMIT $3

-- :name rows_of_sender
SELECT seq, id FROM deliveries WHERE mailbox = $1 AND closed_at_ns IS NULL AND sender = $2 ORDER BY position

-- :name unfinished_of_events
SELECT d.mailbox, m.mesh, m.node, d.seq, d.id, d.state FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox
WHERE d.seq = ANY($1::bigint[]) AND d.state IN ('queued', 'sent', 'rejected', 'dead') ORDER BY d.mailbox, d.position

-- :name prune_records
UPDATE message_records SET history_available = false WHERE seq = ANY($1::bigint[])

-- :name purgeable
SELECT seq, id, state FROM deliveries
WHERE mailbox = $1 AND state IN ('queued', 'sent', 'rejected', 'dead')
AND ($2::bytea[] IS NULL OR id = ANY($2::bytea[])) AND state = ANY($3::text[])
ORDER BY position LIMIT $4

-- :name reopen
UPDATE deliveries SET state = 'queued', closed_at_ns = NULL, reason = NULL, position = $3, opened_at_ns = $4,
timeouts = 0, flaps = 0
WHERE mailbox = $1 AND seq = $2

-- :name open_rows
SELECT open_rows FROM mailboxes WHERE mailbox = $1

-- :name next_records
SELECT r.seq, r.expires_at_ns, EXISTS (
    SELECT 1 FROM deliveries AS d WHERE d.seq = r.seq AND d.state IN ('queued', 'sent', 'rejected', 'dead'))
FROM message_records AS r WHERE r.seq > $1 ORDER BY r.seq LIMIT $2

-- :name note_swept
UPDATE swept_records SET first_seen_through_ns = greatest(first_seen_through_ns, (
    SELECT max(first_seen_at_ns) FROM message_records WHERE seq = ANY($1::bigint[])))

-- :name delete_records
DELETE FROM message_records WHERE seq = ANY($1::bigint[])

-- :name delete_deliveries
DELETE FROM deliveries WHERE seq = ANY($1::bigint[])

-- :name delete_receipts
DELETE FROM receipts WHERE seq = ANY($1::bigint[])

-- :name delete_mentions
DELETE FROM mentions WHERE seq = ANY($1::bigint[])

-- :name page
SELECT d.position, d.seq, d.id, coalesce(d.was_stored, true), d.sends + 1, e.raw
FROM deliveries AS d JOIN events AS e ON e.seq = d.seq
WHERE d.mailbox = $1 AND d.closed_at_ns IS NULL AND d.position > $2 AND d.opened_at_ns >= $3
AND e.raw IS NOT NULL AND (e.expiration_s IS NULL OR e.expiration_s > $4)
ORDER BY d.position LIMIT $5

-- :name waiting
SELECT count(*) FROM deliveries
WHERE mailbox = $1 AND closed_at_ns IS NULL AND position >= (
    SELECT position FROM deliveries
    WHERE mailbox = $1 AND closed_at_ns IS NULL AND opened_at_ns >= $2 ORDER BY position LIMIT 1)

-- :name confirmation_page
SELECT w.seq, w.items, e.raw, e.kind FROM waiting_confirmations AS w JOIN events AS e ON e.seq = w.seq
WHERE w.mailbox = $1 AND w.seq > $2 AND e.raw IS NOT NULL ORDER BY w.seq LIMIT $3

-- :name gaps
SELECT topic, first_seq, last_seq, messages FROM gaps WHERE mailbox = $1 ORDER BY first_seq LIMIT $2

-- :name record_body
SELECT body FROM journal WHERE seq = $1

-- :name due_queues
SELECT m.mesh, m.node FROM mailboxes AS m
WHERE m.open_rows > 0 AND (
    SELECT d.opened_at_ns FROM deliveries AS d
    WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL ORDER BY d.position LIMIT 1) < $1
LIMIT $2

-- :name totals
SELECT
    m.mesh, sum(m.open_rows)::bigint, sum(m.parked_rows)::bigint, sum(m.confirmation_ids)::bigint,
    min(CASE WHEN m.open_rows > 0 THEN (
        SELECT d.opened_at_ns FROM deliveries AS d
        WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL ORDER BY d.position LIMIT 1) END)
FROM mailboxes AS m GROUP BY m.mesh

-- :name record_of_message
SELECT r.seq, s.mesh, s.node, r.from_agent, r.client_message_id,
    CASE WHEN r.topic IS NULL THEN 'dm' ELSE 'topic' END,
    coalesce(r.topic, encode(e.recipient, 'hex') || CASE WHEN r.to_agent = '' THEN '' ELSE '/' || r.to_agent END),
    r.first_seen_at_ns, r.history_available
FROM events AS e JOIN message_records AS r ON r.seq = e.seq JOIN mailboxes AS s ON s.mailbox = r.sender
WHERE e.id = $1

-- :name states_of_message
SELECT m.node, d.state, d.was_stored, d.sends, d.opened_at_ns, d.sent_at_ns, d.closed_at_ns, d.reason,
    x.state, x.at_ms, x.reason
FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox
LEFT JOIN receipts AS x ON x.seq = d.seq AND x.mailbox = d.mailbox
WHERE d.seq = $1 AND ($2::text IS NULL OR m.node = $2) ORDER BY m.node

-- :name mentions_of_message
SELECT node FROM mentions WHERE seq = $1 ORDER BY node

-- :name queues
-- what is in flight comes before the first row that was never sent, as in the SQLite store
SELECT m.node, m.open_rows, m.parked_rows, m.confirmation_ids,
    (SELECT d.opened_at_ns FROM deliveries AS d
     WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL ORDER BY d.position LIMIT 1),
    (SELECT count(*) FROM deliveries AS d
     WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL AND d.position < coalesce((
        SELECT q.position FROM deliveries AS q
        WHERE q.mailbox = m.mailbox AND q.closed_at_ns IS NULL AND q.state = 'queued'
        ORDER BY q.position LIMIT 1), 9223372036854775807))
FROM mailboxes AS m
WHERE m.mesh = $1 AND m.node > $2 AND (m.open_rows > 0 OR m.parked_rows > 0 OR m.confirmation_ids > 0)
ORDER BY m.node LIMIT $3

-- :name queue_rows
SELECT r.node, s.node, encode(d.id, 'hex'), d.seq, d.position, d.state, d.was_stored, d.sends, d.timeouts, d.flaps,
    d.opened_at_ns, d.sent_at_ns, d.closed_at_ns, d.reason
FROM deliveries AS d JOIN mailboxes AS r ON r.mailbox = d.mailbox JOIN mailboxes AS s ON s.mailbox = d.sender
WHERE r.mesh = $1 AND ($2::text IS NULL OR r.node = $2) AND d.state = ANY($3::text[])
AND d.position >= $4 AND (d.position, r.node) > ($4, $5)
ORDER BY d.position, r.node LIMIT $6

-- :name profiles
SELECT e.raw FROM current_events AS c JOIN events AS e ON e.seq = c.event_seq
WHERE c.address = ANY($1::bytea[]) AND e.mesh = $2 AND e.raw IS NOT NULL
AND (e.expiration_s IS NULL OR e.expiration_s > $3)

-- :name unfinished
SELECT m.mesh, m.node, d.id, d.seq, d.state FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox
WHERE d.state IN ('queued', 'sent', 'rejected', 'dead') ORDER BY d.seq, d.mailbox

-- :name counters
SELECT mesh, node, open_rows, parked_rows, confirmation_ids FROM mailboxes ORDER BY mailbox
