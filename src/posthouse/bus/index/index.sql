-- :name position
SELECT epoch, seq FROM place

-- :name set_position
INSERT OR REPLACE INTO place VALUES (1, ?, ?)

-- :name put
INSERT OR REPLACE INTO messages (id, endpoint_hash, subject, sender, status, created_at, expires_at, ended_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- :name end
UPDATE messages SET status = 'done', ended_at = ? WHERE id = ? AND endpoint_hash = ?

-- :name remove
DELETE FROM messages WHERE id = ? AND endpoint_hash = ?

-- :name remove_waiting_of_endpoint
DELETE FROM messages WHERE endpoint_hash = ? AND status != 'dlq'

-- :name move_dead_letters
UPDATE OR REPLACE messages SET endpoint_hash = 'unrouted' WHERE endpoint_hash = ?

-- :name busy_endpoints
SELECT DISTINCT endpoint_hash FROM messages WHERE status IN ('new', 'cur')

-- :name ids_being_handled
SELECT id FROM messages WHERE endpoint_hash = ? AND status = 'cur'

-- :name set_status
UPDATE messages SET status = ? WHERE id = ? AND endpoint_hash = ? AND status = ?

-- :name delete_expired
DELETE FROM messages WHERE status = 'done' AND ended_at < ?

-- :name remove_live
DELETE FROM messages WHERE status != 'done'

-- :name count_by_status
SELECT status, count(*) FROM messages GROUP BY status ORDER BY status

-- :name count_by_subject
SELECT subject, count(*) FROM messages GROUP BY subject ORDER BY subject

-- :name dead_subjects
SELECT subject, count(*) FROM messages WHERE endpoint_hash = ? AND status = 'dlq' GROUP BY subject

-- :name find
SELECT id, endpoint_hash, subject, sender, status, created_at, expires_at FROM messages
WHERE (?1 IS NULL OR subject = ?1) AND (?2 IS NULL OR endpoint_hash = ?2) AND (?3 IS NULL OR status = ?3)
AND (?4 IS NULL OR id > ?4) ORDER BY id, endpoint_hash LIMIT ?5

-- :name expired
SELECT DISTINCT endpoint_hash FROM messages WHERE status = 'new' AND expires_at < ?

-- :name mail
SELECT endpoints.hash, mail.id FROM mail JOIN endpoints ON endpoints.number = mail.endpoint WHERE mail.state != 2
