-- :name columns
SELECT agent, until_ns, reason, set_by, set_at_ns, release_at_ns FROM pauses

-- :name put_pause
INSERT OR REPLACE INTO pauses (agent, until_ns, reason, set_by, set_at_ns, release_at_ns)
VALUES (:agent, :until_ns, :reason, :set_by, :set_at_ns, :release_at_ns)

-- :name delete_pause
DELETE FROM pauses WHERE agent = ? AND until_ns = ?
