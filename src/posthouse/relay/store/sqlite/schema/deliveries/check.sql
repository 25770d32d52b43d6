-- :name records_without_event
SELECT r.seq FROM message_records AS r LEFT JOIN events AS e ON e.seq = r.seq
LEFT JOIN mailboxes AS s ON s.mailbox = r.sender
WHERE e.seq IS NULL OR s.mailbox IS NULL OR e.mesh != s.mesh
OR 'ed25519:' || lower(hex(e.pubkey)) NOT IN (SELECT s.node UNION ALL SELECT node FROM retired_keys)
OR e.kind != 1000 OR r.history_available != (e.raw IS NOT NULL)

-- :name events_without_record
SELECT e.seq FROM events AS e LEFT JOIN message_records AS r ON r.seq = e.seq
JOIN journal AS j ON j.seq = e.seq
WHERE e.kind = 1000 AND r.seq IS NULL AND j.type = 'message.accepted'
AND j.at_ns > (SELECT coalesce(max(at_ns), 0) FROM journal) - :least_ns

-- :name deliveries_without_record
SELECT d.seq, m.node FROM deliveries AS d
LEFT JOIN mailboxes AS m ON m.mailbox = d.mailbox
LEFT JOIN message_records AS r ON r.seq = d.seq
LEFT JOIN events AS e ON e.seq = d.seq
WHERE d.source = 'event' AND (
    r.seq IS NULL OR e.id IS NOT d.id OR m.mailbox IS NULL OR e.mesh != m.mesh OR d.sender != r.sender)

-- :name wrong_counters
SELECT m.mesh, m.node FROM mailboxes AS m
WHERE m.open_rows != (SELECT count(*) FROM deliveries AS d WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL)
OR m.parked_rows != (SELECT count(*) FROM deliveries AS d WHERE d.mailbox = m.mailbox AND d.state IN ('rejected', 'dead'))
OR m.confirmation_ids != (
    SELECT coalesce(sum(w.ids), 0) FROM waiting_confirmations AS w WHERE w.mailbox = m.mailbox)

-- :name wrong_confirmations
SELECT w.seq FROM waiting_confirmations AS w
LEFT JOIN events AS e ON e.seq = w.seq
LEFT JOIN mailboxes AS m ON m.mailbox = w.mailbox
WHERE w.ids != json_array_length(w.items) OR m.mailbox IS NULL
OR (m.node NOT GLOB 'pinch:*' AND (e.seq IS NULL OR e.kind NOT IN (1001, 1002) OR e.raw IS NULL
    OR e.mesh != m.mesh OR 'ed25519:' || lower(hex(e.recipient)) NOT IN (
        SELECT m.node UNION ALL SELECT node FROM retired_keys)))

-- :name wrong_gaps
SELECT g.topic FROM gaps AS g LEFT JOIN mailboxes AS m ON m.mailbox = g.mailbox
WHERE m.mailbox IS NULL OR g.first_seq > g.last_seq

-- :name wrong_receipts
SELECT x.seq FROM receipts AS x LEFT JOIN deliveries AS d ON d.seq = x.seq AND d.mailbox = x.mailbox
LEFT JOIN message_records AS r ON r.seq = x.seq WHERE d.seq IS NULL OR r.topic IS NOT NULL

-- :name wrong_mentions
SELECT n.seq FROM mentions AS n LEFT JOIN message_records AS r ON r.seq = n.seq WHERE r.seq IS NULL

-- :name mentions_above
SELECT lower(hex(e.id)), json_group_array(n.node) FROM mentions AS n JOIN message_records AS r ON r.seq = n.seq
JOIN events AS e ON e.seq = r.seq
WHERE n.seq > ? GROUP BY r.seq

-- :name records_with_content
SELECT r.seq, s.mesh, s.node, r.from_agent, r.client_message_id, r.fingerprint, iif(r.topic IS NULL, 'dm', 'topic'),
    coalesce(r.topic, lower(hex(e.recipient)) || iif(r.to_agent = '', '', '/' || r.to_agent)), e.raw
FROM message_records AS r JOIN events AS e ON e.seq = r.seq JOIN mailboxes AS s ON s.mailbox = r.sender
WHERE e.raw IS NOT NULL ORDER BY r.seq

-- :name states
SELECT m.mesh, m.node, lower(hex(d.id)), d.seq, d.state
FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox ORDER BY d.seq

-- :name record_ids
SELECT lower(hex(e.id)) FROM message_records AS r JOIN events AS e ON e.seq = r.seq UNION ALL SELECT lower(hex(id)) FROM pinch_envelopes
