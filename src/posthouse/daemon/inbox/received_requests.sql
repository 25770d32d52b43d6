-- :name find
SELECT sender, from_agent, to_agent FROM inbox WHERE message_id = ? AND request IS NOT NULL

-- :name close
UPDATE inbox_agent SET read_at_ns = :now_ns, replaced_at_ns = :now_ns WHERE position = :position AND read_at_ns IS NULL

-- :name close_late
UPDATE inbox_agent SET read_at_ns = :now_ns, replaced_at_ns = :now_ns
WHERE read_at_ns IS NULL AND position IN (
    SELECT position FROM inbox WHERE request IS NOT NULL AND valid_until_ns > :closed_through_ns AND valid_until_ns <= :now_ns)

-- :name next_deadline
SELECT min(valid_until_ns) FROM inbox WHERE request IS NOT NULL AND valid_until_ns > ?
