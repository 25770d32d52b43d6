-- :name read_by
SELECT inbox.position, message_id
FROM inbox_agent JOIN inbox ON inbox.position = inbox_agent.position
WHERE agent = ? AND read_by = ? AND read_at_ns IS NOT NULL AND read_before_ns IS NULL AND topic IS NULL
  AND NOT is_failure
ORDER BY inbox.position DESC LIMIT ?

-- :name answered
SELECT reply_to_id FROM outbox
WHERE reply_to_id IN (SELECT value FROM json_each(?)) AND from_agent = ? AND status NOT IN ('dead', 'aborted')

-- :name reopen
UPDATE inbox_agent SET read_before_ns = read_at_ns, read_at_ns = NULL, read_by = NULL, announced_at_ns = NULL
WHERE agent = ? AND position = ?
