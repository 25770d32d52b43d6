-- :name position_of
SELECT position FROM inbox WHERE message_id = ? AND sender = ? AND from_agent = ?

-- :name successor
SELECT id, withdraws FROM inbox WHERE replaces = ? AND sender = ? AND from_agent = ? ORDER BY position DESC LIMIT 1

-- :name note_replaced
UPDATE inbox SET replaced_by = ?, is_withdrawn = ? WHERE position = ?

-- :name close_unread
UPDATE inbox_agent SET read_at_ns = :now_ns, replaced_at_ns = :now_ns
WHERE position = :position AND read_at_ns IS NULL
RETURNING agent

-- :name readers
SELECT agent FROM inbox_agent WHERE position = ? AND replaced_at_ns IS NULL

-- :name close_for
UPDATE inbox_agent SET read_at_ns = :now_ns, replaced_at_ns = :now_ns WHERE position = :position AND agent = :agent
