-- :name same_client_message_id
SELECT id, message_id, topic, reply_to_id, priority, meta, body
FROM inbox WHERE sender = ? AND client_message_id = ? ORDER BY position

-- :name insert_row
INSERT INTO inbox (id, client_message_id, message_id, mesh, topic, sender, sender_name, body, meta, received_at_ns,
                   reply_to_id, priority, budget, undecryptable, bridge, conflicts_with)
VALUES (:id, :client_message_id, :message_id, :mesh, :topic, :sender, :sender_name, :body, :meta, :received_at_ns,
        :reply_to_id, :priority, :budget, :undecryptable, :bridge, :conflicts_with)
RETURNING position

-- :name columns
SELECT position, id, client_message_id, message_id, mesh, topic, sender, sender_name, body, meta, received_at_ns,
       reply_to_id, seen_at_ns, priority, budget, undecryptable, conflicts_with
FROM inbox

-- :name newest_position
SELECT coalesce(max(position), 0) FROM inbox

-- :name mark_seen
UPDATE inbox SET seen_at_ns = ? WHERE (id = ? OR message_id = ?) AND seen_at_ns IS NULL

-- :name cause
SELECT sender, topic, budget FROM inbox WHERE message_id = ?

-- :name unbridged
SELECT position, id, client_message_id, message_id, mesh, topic, sender, sender_name, body, meta, received_at_ns,
       reply_to_id, seen_at_ns, priority, budget, undecryptable, conflicts_with
FROM inbox WHERE bridge = 'waiting' AND position > ? ORDER BY position LIMIT ?

-- :name set_bridge_states
UPDATE inbox SET bridge = ? WHERE position = ?

-- :name delete_old
DELETE FROM inbox WHERE position IN (SELECT position FROM inbox WHERE received_at_ns < ? ORDER BY position LIMIT ?)
RETURNING position, id
