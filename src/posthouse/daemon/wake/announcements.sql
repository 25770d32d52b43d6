-- :name unread
SELECT sender, max(sender_name), from_agent, topic, count(*)
FROM inbox_agent JOIN inbox ON inbox.position = inbox_agent.position
WHERE agent = ? AND read_at_ns IS NULL
GROUP BY sender, from_agent, topic ORDER BY min(inbox.position)

-- :name unannounced
SELECT sender, max(sender_name), from_agent, topic, count(*)
FROM inbox_agent JOIN inbox ON inbox.position = inbox_agent.position
WHERE agent = ? AND read_at_ns IS NULL AND announced_at_ns IS NULL
GROUP BY sender, from_agent, topic ORDER BY min(inbox.position)

-- :name announce
UPDATE inbox_agent SET announced_at_ns = ? WHERE agent = ? AND read_at_ns IS NULL AND announced_at_ns IS NULL
RETURNING position

-- :name release
UPDATE inbox_agent SET announced_at_ns = NULL WHERE agent = ? AND read_at_ns IS NULL AND announced_at_ns = ?
