-- :name save
INSERT INTO webhooks (webhook_id, mesh, body) VALUES (?1, ?2, ?3)
ON CONFLICT (webhook_id) DO UPDATE SET body = excluded.body

-- :name find
SELECT body FROM webhooks WHERE webhook_id = ?1

-- :name all
SELECT body FROM webhooks ORDER BY webhook_id

-- :name remove
DELETE FROM webhooks WHERE webhook_id = ?1

-- :name park
INSERT INTO parked_events (webhook_id, seq, body) VALUES (?1, ?2, ?3)
ON CONFLICT (webhook_id, seq) DO UPDATE SET body = excluded.body

-- :name unpark
DELETE FROM parked_events WHERE webhook_id = ?1 AND seq = ?2

-- :name remove_parked
DELETE FROM parked_events WHERE webhook_id = ?1

-- :name parked
SELECT body FROM parked_events WHERE webhook_id = ?1 ORDER BY seq LIMIT ?2

-- :name parked_counts
SELECT webhook_id, count(*) FROM parked_events GROUP BY webhook_id

-- :name save_incoming
INSERT INTO incoming_hooks (hook_id, mesh, token_hash, body) VALUES (?1, ?2, ?3, ?4)

-- :name remove_incoming
DELETE FROM incoming_hooks WHERE hook_id = ?1

-- :name all_incoming
SELECT body FROM incoming_hooks ORDER BY hook_id

-- :name find_incoming
SELECT body FROM incoming_hooks WHERE token_hash = ?1

-- :name move_creator
UPDATE webhooks SET body = json_set(body, '$.creator', ?2) WHERE body ->> '$.creator' = ?1

-- :name move_incoming
UPDATE incoming_hooks SET body = json_set(body, '$.creator', ?2) WHERE body ->> '$.creator' = ?1
