-- :name page
SELECT
    count(*),
    json_group_array(position),
    json_group_array(seq),
    json_object(
        'ids', json_group_array(lower(hex(id))),
        'was_stored', json_group_array(json(iif(was_stored, 'true', 'false'))),
        'attempts', json_group_array(attempt)),
    CAST(group_concat(
        '["DELIVER",' || seq || ',' || raw || ',{"was_stored":' || iif(was_stored, 'true', 'false')
        || ',"attempt":' || attempt || '}]', ',') AS BLOB)
FROM (
    SELECT d.position, d.seq, d.id, coalesce(d.was_stored, 1) AS was_stored, d.sends + 1 AS attempt, e.raw
    FROM deliveries AS d CROSS JOIN events AS e ON e.seq = d.seq
    WHERE d.mailbox = ? AND d.closed_at_ns IS NULL AND d.position > ? AND d.opened_at_ns >= ?
    AND e.raw IS NOT NULL AND (e.expiration_s IS NULL OR e.expiration_s > ?)
    ORDER BY d.position LIMIT ?)

-- :name waiting
SELECT count(*) FROM deliveries
WHERE mailbox = ?1 AND closed_at_ns IS NULL AND position >= (
    SELECT position FROM deliveries
    WHERE mailbox = ?1 AND closed_at_ns IS NULL AND opened_at_ns >= ?2 ORDER BY position LIMIT 1)

-- :name confirmation_page
SELECT count(*), max(seq), CAST(group_concat('["' || verb || '",' || items || ',' || raw || ']', ',') AS BLOB)
FROM (
    SELECT w.seq, w.items, e.raw, iif(e.kind = 1002, 'RECEIPT', 'CONFIRMED') AS verb FROM waiting_confirmations AS w CROSS JOIN events AS e ON e.seq = w.seq
    WHERE w.mailbox = ? AND w.seq > ? AND e.raw IS NOT NULL ORDER BY w.seq LIMIT ?)

-- :name gaps
SELECT topic, first_seq, last_seq, messages FROM gaps WHERE mailbox = ? ORDER BY first_seq LIMIT ?

-- :name not_queued
SELECT body ->> '$.not_queued' FROM journal WHERE seq = ?

-- :name queue_id_of
SELECT mailbox FROM mailboxes WHERE mesh = ? AND node = ?

-- :name due_queues
SELECT m.mesh, m.node FROM mailboxes AS m
WHERE m.open_rows > 0 AND (
    SELECT d.opened_at_ns FROM deliveries AS d
    WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL ORDER BY d.position LIMIT 1) < ?
LIMIT ?

-- :name totals
SELECT
    m.mesh, sum(m.open_rows), sum(m.parked_rows), sum(m.confirmation_ids),
    min(iif(m.open_rows > 0, (
        SELECT d.opened_at_ns FROM deliveries AS d
        WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL ORDER BY d.position LIMIT 1), NULL))
FROM mailboxes AS m GROUP BY m.mesh

-- :name record_of_message
SELECT r.seq, s.mesh, s.node, r.from_agent, r.client_message_id, iif(r.topic IS NULL, 'dm', 'topic'),
    coalesce(r.topic, lower(hex(e.recipient)) || iif(r.to_agent = '', '', '/' || r.to_agent)), r.first_seen_at_ns,
    r.history_available
FROM events AS e CROSS JOIN message_records AS r ON r.seq = e.seq JOIN mailboxes AS s ON s.mailbox = r.sender
WHERE e.seq = ?

-- :name states_of_message
SELECT m.node, d.state, d.was_stored, d.sends, d.opened_at_ns, d.sent_at_ns, d.closed_at_ns, d.reason,
    x.state, x.at_ms, x.reason
FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox
LEFT JOIN receipts AS x ON x.seq = d.seq AND x.mailbox = d.mailbox
WHERE d.seq = ?1 AND (?2 IS NULL OR m.node = ?2) ORDER BY m.node

-- :name mentions_of_message
SELECT node FROM mentions WHERE seq = ? ORDER BY node

-- :name queues
-- a session sends in the order of the queue, so what is in flight comes before the first row that was never sent: the
-- count reads at most a window of rows, however long the queue is
SELECT m.node, m.open_rows, m.parked_rows, m.confirmation_ids,
    (SELECT d.opened_at_ns FROM deliveries AS d
     WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL ORDER BY d.position LIMIT 1),
    (SELECT count(*) FROM deliveries AS d
     WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL AND d.position < coalesce((
        SELECT q.position FROM deliveries AS q
        WHERE q.mailbox = m.mailbox AND q.closed_at_ns IS NULL AND q.state = 'queued'
        ORDER BY q.position LIMIT 1), 9223372036854775807))
FROM mailboxes AS m
WHERE m.mesh = ? AND m.node > ? AND (m.open_rows > 0 OR m.parked_rows > 0 OR m.confirmation_ids > 0)
ORDER BY m.node LIMIT ?

-- :name open_queue_rows
-- no queue has more than one page of the rows that are merged, whatever waits behind them
SELECT r.node, s.node, lower(hex(d.id)), d.seq, d.position, d.state, d.was_stored, d.sends, d.timeouts, d.flaps,
    d.opened_at_ns, d.sent_at_ns, d.closed_at_ns, d.reason
FROM mailboxes AS r CROSS JOIN deliveries AS d ON d.mailbox = r.mailbox
JOIN mailboxes AS s ON s.mailbox = d.sender
WHERE r.mesh = ?1 AND r.node BETWEEN coalesce(?2, '') AND coalesce(?2, '~')
AND d.closed_at_ns IS NULL AND d.state IN (SELECT value FROM json_each(?3))
AND d.position >= ?4 AND (d.position, r.node) > (?4, ?5)
AND d.position <= (
    SELECT max(position) FROM (
        SELECT x.position FROM deliveries AS x
        WHERE x.mailbox = r.mailbox AND x.closed_at_ns IS NULL AND x.position >= ?4
        AND x.state IN (SELECT value FROM json_each(?3))
        ORDER BY x.position LIMIT ?6 + 1))
ORDER BY d.position, r.node LIMIT ?6

-- :name parked_queue_rows
SELECT r.node, s.node, lower(hex(d.id)), d.seq, d.position, d.state, d.was_stored, d.sends, d.timeouts, d.flaps,
    d.opened_at_ns, d.sent_at_ns, d.closed_at_ns, d.reason
FROM mailboxes AS r CROSS JOIN deliveries AS d ON d.mailbox = r.mailbox
JOIN mailboxes AS s ON s.mailbox = d.sender
WHERE r.mesh = ?1 AND r.node BETWEEN coalesce(?2, '') AND coalesce(?2, '~')
AND d.state IN ('rejected', 'dead') AND d.state IN (SELECT value FROM json_each(?3))
AND d.position >= ?4 AND (d.position, r.node) > (?4, ?5)
ORDER BY d.position, r.node LIMIT ?6

-- :name queue_rows
SELECT r.node, s.node, lower(hex(d.id)), d.seq, d.position, d.state, d.was_stored, d.sends, d.timeouts, d.flaps,
    d.opened_at_ns, d.sent_at_ns, d.closed_at_ns, d.reason
FROM deliveries AS d
JOIN mailboxes AS r ON r.mailbox = d.mailbox
JOIN mailboxes AS s ON s.mailbox = d.sender
WHERE r.mesh = ?1 AND r.node BETWEEN coalesce(?2, '') AND coalesce(?2, '~')
AND d.state IN (SELECT value FROM json_each(?3))
AND d.position >= ?4 AND (d.position, r.node) > (?4, ?5)
ORDER BY d.position, r.node LIMIT ?6

-- :name profiles
SELECT e.raw FROM current_events AS c CROSS JOIN events AS e ON e.seq = c.event_seq
WHERE c.address IN (SELECT value FROM carray(?)) AND e.mesh = ? AND e.raw IS NOT NULL
AND (e.expiration_s IS NULL OR e.expiration_s > ?)

-- :name unfinished
SELECT m.mesh, m.node, lower(hex(d.id)), d.seq, d.state
FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox
WHERE d.state IN ('queued', 'sent', 'rejected', 'dead') ORDER BY d.seq, d.mailbox

-- :name counters
SELECT mesh, node, open_rows, parked_rows, confirmation_ids FROM mailboxes ORDER BY mailbox
