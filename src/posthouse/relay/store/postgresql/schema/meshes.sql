-- :name save_mesh
INSERT INTO meshes (mesh, is_open, creator, created_at_ns) VALUES ($1, $2, $3, $4)
ON CONFLICT (mesh) DO UPDATE SET is_open = excluded.is_open

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

-- :name list_invites
SELECT invite_id, code_hash, mesh, role, uses_left, expires_at_ns, creator
FROM invites WHERE mesh = $1 AND uses_left > 0 AND expires_at_ns > $2 ORDER BY invite_id

-- :name revoke_invite
UPDATE invites SET uses_left = 0, expires_at_ns = 0 WHERE invite_id = $1

-- :name meshes
SELECT mesh, is_open, creator, created_at_ns FROM meshes WHERE $1::text IS NULL OR mesh = $1 ORDER BY mesh

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
