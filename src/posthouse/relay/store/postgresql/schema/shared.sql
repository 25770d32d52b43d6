-- :name foreign_records
SELECT j.seq, j.type, j.mesh, j.actor, j.ref, j.body, e.raw, e.recipient
FROM journal AS j LEFT JOIN events AS e ON e.seq = j.seq
WHERE j.seq > $1 ORDER BY j.seq LIMIT $2

-- :name claim_store
-- Returns the key that the relays of this store have: the given one if they had none yet.
WITH given AS (INSERT INTO store_owner (one, relay) VALUES (1, $1) ON CONFLICT DO NOTHING RETURNING relay)
SELECT relay FROM given UNION ALL SELECT relay FROM store_owner LIMIT 1

-- :name replace_owner
INSERT INTO store_owner (one, relay) VALUES (1, $1) ON CONFLICT (one) DO UPDATE SET relay = excluded.relay
RETURNING relay

-- :name spend_challenge
INSERT INTO spent_challenges (challenge, until_ms) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING until_ms

-- :name forget_challenges
DELETE FROM spent_challenges WHERE challenge IN (
    SELECT challenge FROM spent_challenges WHERE until_ms <= $1 ORDER BY until_ms LIMIT $2)

-- :name open_deliveries
SELECT d.seq FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox
WHERE m.mesh = $1 AND m.node = $2 AND d.seq = ANY($3::bigint[]) AND d.closed_at_ns IS NULL

-- :name beat
INSERT INTO relays (relay_id, url, beat) VALUES ($1, $2, 1)
ON CONFLICT (relay_id) DO UPDATE SET beat = relays.beat + 1, url = excluded.url

-- :name beat_term
UPDATE leader SET beat = beat + 1, boot_ns = $2 WHERE term = $1

-- :name relays
SELECT relay_id, url, beat FROM relays ORDER BY relay_id

-- :name leader
SELECT term, relay_id, beat, boot_id, boot_ns FROM leader

-- :name begin_first_term
INSERT INTO leader (one, term, relay_id, beat, boot_id, boot_ns) VALUES (1, 1, $1, 0, $2, $3)
ON CONFLICT DO NOTHING RETURNING term

-- :name begin_term
UPDATE leader SET term = term + 1, relay_id = $2, beat = 0, boot_id = $3, boot_ns = $4 WHERE term = $1 RETURNING term

-- :name leave
DELETE FROM relays WHERE relay_id = ANY($1::text[])

-- :name resign
UPDATE leader SET relay_id = '' WHERE relay_id = $1

-- :name check_term
SELECT term FROM leader WHERE term = $1 FOR SHARE

-- :name next_session
INSERT INTO mailboxes (mesh, node, session) VALUES ($1, $2, 1)
ON CONFLICT (mesh, node) DO UPDATE SET session = mailboxes.session + 1 RETURNING session

-- :name session_numbers
SELECT m.mesh, m.node, m.session FROM unnest($1::text[], $2::text[]) AS given (mesh, node)
JOIN mailboxes AS m ON m.mesh = given.mesh AND m.node = given.node
