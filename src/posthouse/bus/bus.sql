-- :name state
SELECT last_id, endpoints_version, rates_boot_id FROM bus_state

-- :name set_last_id
UPDATE bus_state SET last_id = ? WHERE id = 1

-- :name bump_endpoints
UPDATE bus_state SET endpoints_version = endpoints_version + 1 WHERE id = 1

-- :name boot_id
SELECT boot_id FROM bus_state

-- :name set_boot_id
UPDATE bus_state SET boot_id = ? WHERE id = 1

-- :name add_instance
INSERT INTO instances (name) VALUES (?) RETURNING number

-- :name instances
SELECT number, name FROM instances

-- :name remove_instance
DELETE FROM instances WHERE number = ?

-- :name endpoints
SELECT number, hash, subject, owner, registered_at FROM endpoints ORDER BY number

-- :name endpoint_by_hash
SELECT number, hash, subject, owner, registered_at FROM endpoints WHERE hash = ?

-- :name add_endpoint
INSERT INTO endpoints (hash, subject, owner, registered_at, private_to) VALUES (?, ?, ?, ?, ?) RETURNING number

-- :name remove_endpoint
DELETE FROM endpoints WHERE number = ?

-- :name private_numbers
SELECT number FROM endpoints WHERE private_to IS NOT NULL

-- :name private_endpoints
SELECT number, hash, subject, owner, registered_at FROM endpoints WHERE private_to = ?

-- :name endpoint_state
SELECT depth, last_id, served_by, circuit, failures, successes, probes, since_boot_ns, boot_id
FROM endpoints WHERE number = ?

-- :name depths
SELECT subject, depth FROM endpoints ORDER BY subject

-- :name set_depth
UPDATE endpoints SET depth = ?, last_id = ? WHERE number = ?

-- :name set_breaker
UPDATE endpoints SET circuit = ?, failures = ?, successes = ?, probes = ?, since_boot_ns = ?, boot_id = ?
WHERE number = ?

-- :name breakers
SELECT subject, hash, circuit, failures, successes, probes, since_boot_ns, boot_id FROM endpoints ORDER BY subject

-- :name set_served
UPDATE endpoints SET served_by = ? WHERE number = ?

-- :name clear_served
UPDATE endpoints SET served_by = NULL WHERE number = ? AND served_by = ?

-- :name clear_served_by
UPDATE endpoints SET served_by = NULL WHERE served_by = ?

-- :name served_by
SELECT number, hash, subject, owner, registered_at FROM endpoints WHERE served_by = ?

-- :name add_mail
INSERT INTO mail (endpoint, id, state, instance, reserved) VALUES (?, ?, ?, ?, ?)

-- :name mail_state
SELECT state FROM mail WHERE endpoint = ? AND id = ?

-- :name mail_reserved
SELECT reserved FROM mail WHERE endpoint = ? AND id = ?

-- :name store_mail
UPDATE mail SET state = 1 WHERE endpoint = ? AND id = ? AND state = 0

-- :name remove_mail
DELETE FROM mail WHERE endpoint = ? AND id = ?

-- :name mail_between
SELECT id FROM mail WHERE endpoint = ? AND id > ? AND id < ? AND state != 2 ORDER BY id

-- :name mail_of_endpoint
SELECT id, state FROM mail WHERE endpoint = ?

-- :name open_mail_of_instance
SELECT endpoint, id, state FROM mail WHERE instance = ? AND state != 1

-- :name remove_mail_of_endpoint
DELETE FROM mail WHERE endpoint = ?

-- :name open_mail
SELECT id FROM mail WHERE endpoint = ? AND state != 1

-- :name rate_total
SELECT total FROM rate_log WHERE sender = ? ORDER BY boot_ns DESC LIMIT 1

-- :name rate_total_at
SELECT total FROM rate_log WHERE sender = ? AND boot_ns <= ? ORDER BY boot_ns DESC LIMIT 1

-- :name nth_publish
SELECT boot_ns FROM rate_log WHERE sender = ? AND boot_ns > ? AND total >= ? ORDER BY boot_ns LIMIT 1

-- :name rate_base
SELECT total - count FROM rate_log WHERE sender = ? ORDER BY boot_ns LIMIT 1

-- :name add_rate
INSERT INTO rate_log (sender, boot_ns, count, total) VALUES (?, ?, ?, ?)
ON CONFLICT (sender, boot_ns) DO UPDATE SET count = count + excluded.count, total = excluded.total

-- :name next_rate_sender
SELECT min(sender) FROM rate_log WHERE sender > ?

-- :name forget_rates
DELETE FROM rate_log WHERE (sender, boot_ns) IN
(SELECT sender, boot_ns FROM rate_log WHERE sender = ? AND boot_ns <= ? ORDER BY boot_ns LIMIT ?)

-- :name forget_all_rates
DELETE FROM rate_log

-- :name set_rates_boot_id
UPDATE bus_state SET rates_boot_id = ? WHERE id = 1

-- :name published
SELECT body FROM journal WHERE ref = ? AND type = 'bus.published'

-- :name journal_extent
SELECT pruned_through, snapshot_seq, body_bytes FROM journal_state

-- :name journal_at
SELECT at_ns FROM journal WHERE seq = ?

-- :name journal_older
SELECT seq FROM journal WHERE seq > ? AND seq <= ? AND at_ns < ? ORDER BY seq DESC LIMIT 1

-- :name journal_sizes
SELECT seq, octet_length(body) FROM journal WHERE seq > ? AND seq <= ? ORDER BY seq
