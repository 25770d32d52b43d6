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

-- :name wakeful
SELECT 1 FROM inbox_agent JOIN inbox ON inbox.position = inbox_agent.position
WHERE agent = ? AND read_at_ns IS NULL AND announced_at_ns IS NULL AND NOT is_failure AND undecryptable IS NULL
LIMIT 1

-- :name next_wakeful
SELECT sender, sender_name, from_agent, topic, 1
FROM inbox_agent JOIN inbox ON inbox.position = inbox_agent.position
WHERE agent = ? AND read_at_ns IS NULL AND announced_at_ns IS NULL AND NOT is_failure AND undecryptable IS NULL
ORDER BY inbox.position LIMIT 1

-- :name announce_next
UPDATE inbox_agent SET announced_at_ns = ?1, claim = ?3 WHERE agent = ?2 AND position = (
    SELECT min(inbox.position) FROM inbox_agent AS other JOIN inbox ON inbox.position = other.position
    WHERE other.agent = ?2 AND read_at_ns IS NULL AND announced_at_ns IS NULL AND NOT is_failure
      AND undecryptable IS NULL
)
RETURNING position

-- :name announce
UPDATE inbox_agent SET announced_at_ns = ?1, claim = ?3
WHERE agent = ?2 AND read_at_ns IS NULL AND announced_at_ns IS NULL
RETURNING position

-- :name claims
SELECT DISTINCT claim FROM inbox_agent INDEXED BY inbox_agent_claimed
WHERE agent = ? AND claim IS NOT NULL

-- :name settle
UPDATE inbox_agent SET claim = NULL WHERE claim = ?

-- :name release
UPDATE inbox_agent SET announced_at_ns = NULL, claim = NULL WHERE claim = ?
