-- :name save_mesh
INSERT INTO meshes (mesh, is_open, creator, created_at_ns, state, approves_keys) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (mesh) DO UPDATE SET is_open = excluded.is_open, state = excluded.state,
    approves_keys = excluded.approves_keys

-- :name save_limits
INSERT INTO mesh_limits (mesh, source, limits) VALUES ($1, $2, $3)
ON CONFLICT (mesh, source) DO UPDATE SET limits = excluded.limits

-- :name clear_mesh
WITH m AS (DELETE FROM members WHERE mesh = $1), a AS (DELETE FROM access WHERE mesh = $1),
t AS (DELETE FROM topics WHERE mesh = $1), s AS (DELETE FROM subscriptions WHERE mesh = $1),
b AS (DELETE FROM blocks WHERE mesh = $1), f AS (DELETE FROM fence_rules WHERE mesh = $1),
h AS (DELETE FROM held_keys WHERE mesh = $1),
u AS (DELETE FROM invite_uses USING invites WHERE invite_uses.invite_id = invites.invite_id AND invites.mesh = $1)
DELETE FROM mesh_limits WHERE mesh = $1

-- :name clear_invites
DELETE FROM invites WHERE mesh = $1

-- :name save_member
INSERT INTO members (mesh, node, name, role) VALUES ($1, $2, $3, $4)
ON CONFLICT (mesh, node) DO UPDATE SET name = excluded.name, role = excluded.role

-- :name remove_member
DELETE FROM members WHERE mesh = $1 AND node = $2

-- :name save_access
INSERT INTO access (mesh, node, read, write, lock) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (mesh, node) DO UPDATE SET read = excluded.read, write = excluded.write, lock = excluded.lock

-- :name remove_access
DELETE FROM access WHERE mesh = $1 AND node = $2

-- :name save_fence_rule
INSERT INTO fence_rules (mesh, kind, d_prefix, resource) VALUES ($1, $2, $3, $4)
ON CONFLICT (mesh, kind, d_prefix) DO UPDATE SET resource = excluded.resource

-- :name remove_fence_rule
DELETE FROM fence_rules WHERE mesh = $1 AND kind = $2 AND d_prefix = $3

-- :name save_topic
INSERT INTO topics (mesh, topic, creator) VALUES ($1, $2, $3)

-- :name remove_topic
DELETE FROM topics WHERE mesh = $1 AND topic = $2

-- :name save_subscription
INSERT INTO subscriptions (mesh, node, pattern) VALUES ($1, $2, $3)

-- :name remove_subscription
DELETE FROM subscriptions WHERE mesh = $1 AND node = $2 AND pattern = $3

-- :name save_block
INSERT INTO blocks (mesh, node, blocked) VALUES ($1, $2, $3)

-- :name remove_block
DELETE FROM blocks WHERE mesh = $1 AND node = $2 AND blocked = $3

-- :name save_invite
INSERT INTO invites (invite_id, code_hash, mesh, role, uses_left, expires_at_ns, creator)
VALUES ($1, $2, $3, $4, $5, $6, $7)

-- :name find_invite
SELECT invite_id, code_hash, mesh, role, uses_left, expires_at_ns, creator FROM invites WHERE code_hash = $1

-- :name use_invite
WITH taken AS (UPDATE invites SET uses_left = uses_left - 1 WHERE invite_id = $1)
INSERT INTO invite_uses (invite_id, node) VALUES ($1, $2)

-- :name has_used
SELECT EXISTS (SELECT 1 FROM invite_uses WHERE invite_id = $1 AND node = $2)

-- :name void_invites
UPDATE invites SET uses_left = 0

-- :name list_invites
SELECT invite_id, code_hash, mesh, role, uses_left, expires_at_ns, creator
FROM invites WHERE mesh = $1 AND uses_left > 0 AND expires_at_ns > $2 ORDER BY invite_id

-- :name revoke_invite
UPDATE invites SET uses_left = 0, expires_at_ns = 0 WHERE invite_id = $1

-- :name meshes
SELECT mesh, is_open, creator, created_at_ns, state, approves_keys FROM meshes
WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh

-- :name members
SELECT mesh, node, name, role FROM members WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh, node

-- :name access
SELECT mesh, node, read, write, lock FROM access WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh, node

-- :name topics
SELECT mesh, topic, creator FROM topics WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh, topic

-- :name subscriptions
SELECT mesh, node, pattern FROM subscriptions WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh, node, pattern

-- :name blocks
SELECT mesh, node, blocked FROM blocks WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh, node, blocked

-- :name fence_rules
SELECT mesh, kind, d_prefix, resource FROM fence_rules WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh, kind, d_prefix

-- :name limits
SELECT mesh, source, limits FROM mesh_limits WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh, source

-- :name held_keys
SELECT mesh, node, former, at_ns FROM held_keys WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh, node

-- :name save_held_key
INSERT INTO held_keys (mesh, node, former, at_ns) VALUES ($1, $2, $3, $4)

-- :name remove_held_key
DELETE FROM held_keys WHERE mesh = $1 AND node = $2

-- :name retired_keys
SELECT node, reason, successor, actor, at_ns, suspect_from_ns, suspect_after_seq, event, naming_event
FROM retired_keys ORDER BY at_ns, node

-- :name save_retired_key
INSERT INTO retired_keys (node, reason, successor, actor, at_ns, suspect_from_ns, suspect_after_seq, event, naming_event)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (node) DO UPDATE SET reason = excluded.reason, successor = excluded.successor, actor = excluded.actor,
    at_ns = excluded.at_ns, suspect_from_ns = excluded.suspect_from_ns,
    suspect_after_seq = excluded.suspect_after_seq, event = excluded.event, naming_event = excluded.naming_event

-- :name move_node
WITH me AS (UPDATE members SET node = $2 WHERE node = $1), ac AS (UPDATE access SET node = $2 WHERE node = $1),
t AS (UPDATE topics SET creator = $2 WHERE creator = $1), s AS (UPDATE subscriptions SET node = $2 WHERE node = $1),
i AS (UPDATE invites SET creator = $2 WHERE creator = $1), u AS (UPDATE invite_uses SET node = $2 WHERE node = $1),
b AS (UPDATE blocks SET node = CASE node WHEN $1 THEN $2 ELSE node END,
    blocked = CASE blocked WHEN $1 THEN $2 ELSE blocked END WHERE node = $1 OR blocked = $1),
h AS (UPDATE held_keys SET node = $2 WHERE node = $1),
mb AS (UPDATE mailboxes SET node = $2 WHERE node = $1)
UPDATE mentions SET node = $2 WHERE node = $1

-- :name mailbox_meshes
SELECT mesh FROM mailboxes WHERE node = $1 ORDER BY mesh

-- :name unfinished_deliveries
SELECT m.mesh, encode(d.id, 'hex'), d.state, s.node, coalesce(r.from_agent, ''), coalesce(r.to_agent, '')
FROM mailboxes AS m JOIN deliveries AS d ON d.mailbox = m.mailbox JOIN mailboxes AS s ON s.mailbox = d.sender
LEFT JOIN message_records AS r ON r.seq = d.seq
WHERE m.node = $1 AND (d.closed_at_ns IS NULL OR d.state IN ('rejected', 'dead')) ORDER BY m.mesh, d.seq

-- :name last_seq_before
SELECT coalesce(
    (SELECT seq FROM journal WHERE at_ns < $1 ORDER BY seq DESC LIMIT 1),
    (SELECT min(seq) - 1 FROM journal), 0)
