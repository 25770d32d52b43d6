-- :name insert_records
INSERT INTO message_records (
    seq, sender, from_agent, client_message_id, fingerprint, topic, to_agent, first_seen_at_ns, expires_at_ns
) VALUES

-- :name insert_queued
INSERT INTO deliveries (seq, mailbox, id, sender, position, opened_at_ns) VALUES

-- :name insert_deliveries
INSERT INTO deliveries (seq, mailbox, source, id, sender, position, state, opened_at_ns, closed_at_ns) VALUES

-- :name insert_gaps
INSERT INTO gaps (mailbox, topic, first_seq, last_seq, messages) VALUES

-- :name widened
ON CONFLICT (mailbox, topic) DO UPDATE SET last_seq = excluded.last_seq, messages = messages + excluded.messages

-- :name close_gap
DELETE FROM gaps WHERE mailbox = ? AND topic = ? AND last_seq <= ?

-- :name shorten_gap
UPDATE gaps SET first_seq = ?3 + 1 WHERE mailbox = ?1 AND topic = ?2 AND first_seq <= ?3

-- :name insert_mentions
INSERT INTO mentions (node, seq) VALUES

-- :name grow_queues
INSERT INTO mailboxes (mesh, node, open_rows) VALUES

-- :name grown
ON CONFLICT (mesh, node) DO UPDATE SET open_rows = open_rows + excluded.open_rows

-- :name find_queues
SELECT json_group_array(json((
    SELECT json_array(node, mailbox, open_rows) FROM mailboxes WHERE mesh = ?1 AND node = c.value)))
FROM carray(?2) AS c

-- :name find_records
SELECT json_array((SELECT first_seen_through_ns FROM swept_records), json_group_array(json_array(
    r.sender, r.from_agent, r.client_message_id, r.seq, lower(hex(e.id)), lower(hex(r.fingerprint)), r.first_seen_at_ns,
    r.history_available)))
FROM json_each(?) AS k CROSS JOIN message_records AS r
    ON r.sender = k.value ->> 0 AND r.from_agent = k.value ->> 1 AND r.client_message_id = k.value ->> 2
CROSS JOIN events AS e ON e.seq = r.seq

-- :name audience_version
SELECT version FROM audience_versions WHERE mesh = ?

-- :name blockers
SELECT json_group_array(node) FROM blocks WHERE mesh = ? AND blocked = ?

-- :name add_waiting_confirmation
INSERT INTO waiting_confirmations (seq, mailbox, ids, items) VALUES (?, ?, ?, ?)

-- :name add_confirmation_ids
-- without RETURNING, which would make the statement eight times as slow
UPDATE mailboxes SET confirmation_ids = confirmation_ids + ? WHERE mailbox = ?

-- :name confirmation_ids
SELECT confirmation_ids FROM mailboxes WHERE mailbox = ?

-- :name oldest_confirmations
SELECT seq, ids FROM waiting_confirmations WHERE mailbox = ? ORDER BY seq LIMIT 64

-- :name drop_confirmations
DELETE FROM waiting_confirmations WHERE mailbox = ? AND seq <= ?

-- :name drop_confirmations_total
SELECT coalesce(sum(ids), 0) FROM waiting_confirmations WHERE mailbox = ? AND seq <= ?

-- :name waiting_among
SELECT mailbox, sum(ids) FROM waiting_confirmations WHERE seq IN (SELECT value FROM carray(?)) GROUP BY mailbox

-- :name drop_waiting
DELETE FROM waiting_confirmations WHERE seq IN (SELECT value FROM carray(?))
