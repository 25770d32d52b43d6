-- :name state
SELECT
    nullif(max(
        coalesce(last_id, ''), coalesce((SELECT max(ref) FROM journal WHERE type = 'bus.published'), '')
    ), ''),
    endpoints_version, removals, rates_boot_id
FROM bus_state

-- :name set_last_id
UPDATE bus_state SET last_id = ? WHERE id = 1

-- :name bump_endpoints
UPDATE bus_state SET endpoints_version = endpoints_version + 1 WHERE id = 1

-- :name count_removal
UPDATE bus_state SET endpoints_version = endpoints_version + 1, removals = removals + 1 WHERE id = 1

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

-- :name endpoints_after
SELECT number, hash, subject, owner, registered_at, private_to IS NOT NULL FROM endpoints
WHERE number > ? ORDER BY number

-- :name endpoint_by_hash
SELECT number, hash, subject, owner, registered_at FROM endpoints WHERE hash = ?

-- :name add_endpoint
INSERT INTO endpoints (hash, subject, owner, registered_at, private_to) VALUES (?, ?, ?, ?, ?) RETURNING number

-- :name remove_endpoint
DELETE FROM endpoints WHERE number = ?

-- :name private_endpoints
SELECT number, hash, subject, owner, registered_at FROM endpoints WHERE private_to = ?

-- :name endpoint_state
SELECT depth, (SELECT max(id) FROM mail WHERE endpoint = number),
EXISTS (SELECT 1 FROM servers WHERE endpoint = number),
coalesce(letter_counts.failed, 0), coalesce(letter_counts.failed_bytes, 0),
circuit, failures, successes, probes, since_boot_ns, boot_id
FROM endpoints LEFT JOIN letter_counts ON letter_counts.endpoint = number WHERE number = ?

-- :name depths
SELECT subject, depth FROM endpoints ORDER BY subject

-- :name set_depth
UPDATE endpoints SET depth = ? WHERE number = ?

-- :name set_breaker
UPDATE endpoints SET circuit = ?, failures = ?, successes = ?, probes = ?, since_boot_ns = ?, boot_id = ?
WHERE number = ?

-- :name breakers
SELECT subject, hash, circuit, failures, successes, probes, since_boot_ns, boot_id FROM endpoints ORDER BY subject

-- :name add_server
INSERT OR REPLACE INTO servers (endpoint, instance, "group") VALUES (?, ?, ?)

-- :name remove_server
DELETE FROM servers WHERE endpoint = ? AND instance = ?

-- :name remove_servers_of_instance
DELETE FROM servers WHERE instance = ?

-- :name remove_servers_of_endpoint
DELETE FROM servers WHERE endpoint = ?

-- :name servers_of_endpoint
SELECT servers.instance, servers."group", instances.name
FROM servers LEFT JOIN instances ON instances.number = servers.instance WHERE servers.endpoint = ?

-- :name servers_of_endpoints
SELECT servers.endpoint, servers.instance, instances.name
FROM servers LEFT JOIN instances ON instances.number = servers.instance
WHERE servers.endpoint IN (SELECT value FROM json_each(?))

-- :name served_by
SELECT endpoint FROM servers WHERE instance = ?

-- :name is_served
SELECT EXISTS (SELECT 1 FROM servers WHERE endpoint = ?)

-- :name add_mail
INSERT INTO mail (endpoint, id, state, instance, reserved) VALUES (?, ?, ?, ?, ?)

-- :name mail_row
SELECT state, claimed_by, attempts FROM mail WHERE endpoint = ? AND id = ?

-- :name claim_mail
UPDATE mail SET claimed_by = ?1 WHERE endpoint = ?2 AND id = ?3 AND state = 1
AND (claimed_by IS NULL OR claimed_by = ?1)

-- :name mail_attempts
SELECT attempts FROM mail WHERE endpoint = ? AND id = ?

-- :name unclaim_mail
UPDATE mail SET claimed_by = NULL WHERE endpoint = ? AND id = ?

-- :name unclaim_all
UPDATE mail SET claimed_by = NULL WHERE claimed_by = ? AND endpoint = ?

-- :name claims_of_instance
SELECT endpoint, id FROM mail WHERE claimed_by = ?

-- :name claims_on_endpoint
SELECT id FROM mail WHERE claimed_by = ? AND endpoint = ?

-- :name count_attempt
UPDATE mail SET attempts = attempts + 1, claimed_by = NULL WHERE endpoint = ? AND id = ? RETURNING attempts

-- :name mail_reserved
SELECT reserved FROM mail WHERE endpoint = ? AND id = ?

-- :name store_mail
UPDATE mail SET state = 1 WHERE endpoint = ? AND id = ? AND state = 0

-- :name remove_mail
DELETE FROM mail WHERE endpoint = ? AND id = ?

-- :name mail_between
SELECT id FROM mail WHERE endpoint = ? AND id > ? AND id < ? AND state != 2 ORDER BY id

-- :name mail_of_endpoint
SELECT id, state, instance FROM mail WHERE endpoint = ?

-- :name open_mail_of_instance
SELECT endpoint, id, state FROM mail WHERE instance = ? AND state != 1

-- :name remove_mail_of_endpoint
DELETE FROM mail WHERE endpoint = ?

-- :name open_mail
SELECT id FROM mail WHERE endpoint = ? AND state != 1

-- :name add_letter
INSERT INTO letters (endpoint, id, kind, bytes) VALUES (?, ?, ?, ?)

-- :name remove_letter
DELETE FROM letters WHERE endpoint = ? AND id = ?

-- :name letters
SELECT id, bytes FROM letters WHERE endpoint = ?

-- :name oldest_refused
SELECT id, bytes FROM letters WHERE endpoint = ? AND kind IN (1, 2) ORDER BY id LIMIT ?

-- :name oldest_untrimmed
SELECT id, bytes FROM letters WHERE endpoint = ? AND kind = 1 ORDER BY id LIMIT ?

-- :name remove_replaced_letters
DELETE FROM letters WHERE endpoint = 0 AND id IN (SELECT id FROM letters WHERE endpoint = ?)

-- :name copy_letters_to_unrouted
INSERT INTO letters (endpoint, id, kind, bytes) SELECT 0, id, kind, bytes FROM letters WHERE endpoint = ?

-- :name remove_letters_of_endpoint
DELETE FROM letters WHERE endpoint = ?

-- :name remove_letter_count
DELETE FROM letter_counts WHERE endpoint = ?

-- :name letter_count
SELECT refused, refused_bytes, failed, failed_bytes FROM letter_counts WHERE endpoint = ?

-- :name letter_counts
SELECT letter_counts.endpoint, coalesce(endpoints.subject, 'unrouted'), coalesce(endpoints.hash, 'unrouted'),
refused, refused_bytes, letter_counts.failed, failed_bytes
FROM letter_counts LEFT JOIN endpoints ON endpoints.number = letter_counts.endpoint
WHERE refused + letter_counts.failed > 0 ORDER BY 2

-- :name has_letters
SELECT has_letters FROM bus_state

-- :name set_has_letters
UPDATE bus_state SET has_letters = 1 WHERE id = 1

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

-- :name published_seq
SELECT min(seq) FROM journal WHERE ref = ? AND type = 'bus.published'

-- :name records_of_message
SELECT type, body FROM journal WHERE seq >= ? AND ref = ?
AND type IN ('bus.published', 'bus.redelivered', 'bus.handled', 'bus.failed', 'bus.dead') ORDER BY seq

-- :name journal_oldest
SELECT at_ns FROM journal ORDER BY seq LIMIT 1

-- :name journal_at
SELECT at_ns FROM journal WHERE seq = ?

-- :name journal_older
SELECT seq FROM journal WHERE seq > ? AND seq <= ? AND at_ns < ? ORDER BY seq DESC LIMIT 1

-- :name journal_sizes
SELECT seq, octet_length(body) FROM journal WHERE seq > ? AND seq <= ? ORDER BY seq
