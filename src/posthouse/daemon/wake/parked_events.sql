-- :name columns
SELECT hook, event_id, mesh, ref, environment, attempts, last_exit, parked_at_ns, next_at_ns FROM parked_events

-- :name park
INSERT OR IGNORE INTO parked_events
    (hook, event_id, mesh, ref, environment, attempts, last_exit, parked_at_ns, next_at_ns)
VALUES (:hook, :event_id, :mesh, :ref, :environment, :attempts, :last_exit, :parked_at_ns, :next_at_ns)

-- :name put_off
UPDATE parked_events SET attempts = :attempts, last_exit = :last_exit, next_at_ns = :next_at_ns
WHERE hook = :hook AND event_id = :event_id

-- :name remove
DELETE FROM parked_events WHERE hook = ? AND event_id = ?

-- :name counts
SELECT hook, count(*) FROM parked_events GROUP BY hook

-- :name retry_now
UPDATE parked_events SET next_at_ns = 0 WHERE hook = ?

-- :name drop
DELETE FROM parked_events WHERE hook = ? RETURNING event_id

-- :name drop_others
DELETE FROM parked_events WHERE hook NOT IN (SELECT value FROM json_each(?))
