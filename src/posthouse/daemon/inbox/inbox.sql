-- :name same_client_message_id
SELECT id, message_id, topic, reply_to_id, priority, meta, body, to_agent
FROM inbox WHERE sender = ? AND client_message_id = ? AND from_agent = ?
ORDER BY +position -- without the plus SQLite reads every message of the sender in the order of another index

-- :name insert_row
INSERT INTO inbox (id, client_message_id, message_id, mesh, topic, sender, sender_name, body, meta, received_at_ns,
                   reply_to_id, priority, budget, undecryptable, bridge, conflicts_with, from_agent, to_agent,
                   sent_at_ns, valid_until_ns, replaces, withdraws, is_failure, request, traceparent)
VALUES (:id, :client_message_id, :message_id, :mesh, :topic, :sender, :sender_name, :body, :meta, :received_at_ns,
        :reply_to_id, :priority, :budget, :undecryptable, :bridge, :conflicts_with, :from_agent, :to_agent,
        :sent_at_ns, :valid_until_ns, :replaces, :withdraws, :is_failure, :request, :traceparent)

-- :name insert_agent
INSERT INTO inbox_agent (agent, position) VALUES (?, ?)

-- :name columns
SELECT inbox.position, id, client_message_id, message_id, mesh, topic, sender, sender_name, body, meta, received_at_ns,
       reply_to_id, read_at_ns, priority, budget, undecryptable, conflicts_with, from_agent, to_agent, agent,
       sent_at_ns, valid_until_ns, is_failure, replaced_by, is_withdrawn, replaced_at_ns, read_before_ns,
       (SELECT count(*) FROM (
           SELECT 1 FROM inbox AS newer INDEXED BY inbox_by_sender
           CROSS JOIN inbox_agent AS other ON other.position = newer.position
           WHERE newer.sender = inbox.sender AND newer.from_agent = inbox.from_agent
             AND newer.position > inbox.position AND other.agent = inbox_agent.agent AND other.replaced_at_ns IS NULL
           LIMIT 100)), request, traceparent
FROM inbox_agent JOIN inbox ON inbox.position = inbox_agent.position

-- :name between_agents
SELECT position, id, client_message_id, message_id, mesh, topic, sender, sender_name, body, meta, received_at_ns,
       reply_to_id, NULL, priority, budget, undecryptable, conflicts_with, from_agent, to_agent, to_agent
FROM inbox
WHERE sender = :node AND topic IS NULL AND position < :before
  AND ((:agent IN ('', from_agent) AND :peer IN ('', to_agent)) OR (:agent IN ('', to_agent) AND :peer IN ('', from_agent)))
ORDER BY position DESC LIMIT :limit

-- :name unread_counts
SELECT agent, count(*) FROM inbox_agent WHERE read_at_ns IS NULL GROUP BY agent

-- :name oldest_unread
SELECT agent, (SELECT received_at_ns FROM inbox WHERE position = oldest)
FROM (SELECT agent, min(position) AS oldest FROM inbox_agent WHERE read_at_ns IS NULL GROUP BY agent)

-- :name unread_count
SELECT count(*) FROM inbox_agent WHERE agent = ? AND read_at_ns IS NULL

-- :name rename_agent
UPDATE OR REPLACE inbox_agent SET agent = ? WHERE agent = ?

-- :name answers
WHERE reply_to_id = ? AND agent = ? AND inbox_agent.position > ? ORDER BY inbox_agent.position LIMIT ?

-- :name cause
SELECT sender, from_agent, topic, budget FROM inbox WHERE message_id = ?

-- :name unbridged
SELECT position, id, client_message_id, message_id, mesh, topic, sender, sender_name, body, meta, received_at_ns,
       reply_to_id, NULL, priority, budget, undecryptable, conflicts_with, from_agent, to_agent, to_agent, sent_at_ns,
       valid_until_ns, is_failure, NULL, 0, NULL, NULL, 0, request
FROM inbox WHERE bridge = 'waiting' AND position > ? ORDER BY position LIMIT ?

-- :name set_bridge_states
UPDATE inbox SET bridge = ? WHERE position = ?

-- :name delete_old
-- only what every agent has read, or the bus has: unread mail is never deleted by its age
DELETE FROM inbox WHERE position IN (
    SELECT position FROM inbox
    WHERE received_at_ns < ?1 AND (bridge = 'published' OR NOT EXISTS (
        SELECT 1 FROM inbox_agent
        WHERE inbox_agent.position = inbox.position AND (read_at_ns IS NULL OR read_at_ns >= ?1)))
    ORDER BY position LIMIT ?2)
RETURNING position, id

-- :name known_messages
SELECT DISTINCT message_id FROM inbox WHERE message_id IN (SELECT value FROM json_each(?))
