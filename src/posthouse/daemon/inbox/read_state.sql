-- :name unread
SELECT inbox.id, inbox.position FROM inbox JOIN inbox_agent ON inbox_agent.position = inbox.position
WHERE (id = :key OR message_id = :key) AND agent = :agent AND read_at_ns IS NULL

-- :name mark_seen
UPDATE inbox_agent SET read_at_ns = ?, read_by = ? WHERE agent = ? AND position = ?

-- :name note_handed
INSERT OR IGNORE INTO inbox_receipts (position, agent, message_id, sender, handed_at_ns)
SELECT inbox.position, agent, message_id, sender, :at_ns
FROM inbox JOIN inbox_agent ON inbox_agent.position = inbox.position AND agent = :agent
WHERE (id = :key OR message_id = :key) AND topic IS NULL AND undecryptable IS NULL
  AND (:is_confirmed OR valid_until_ns IS NULL OR valid_until_ns > :at_ns)

-- :name waiting
SELECT position, agent, message_id, sender, handed_at_ns FROM inbox_receipts
WHERE is_sent = 0 AND position > ? ORDER BY position LIMIT ?

-- :name mark_sent
UPDATE inbox_receipts SET is_sent = 1 WHERE position = ? AND agent = ?

-- :name answered_at
SELECT min(received_at_ns) FROM inbox WHERE reply_to_id = ?

-- :name unread_span
SELECT message_id, received_at_ns, traceparent FROM inbox JOIN inbox_agent ON inbox.position = inbox_agent.position
WHERE (id = :key OR message_id = :key) AND agent = :agent AND read_at_ns IS NULL AND traceparent IS NOT NULL

-- :name traceparent_of
SELECT traceparent FROM inbox WHERE message_id = ?
