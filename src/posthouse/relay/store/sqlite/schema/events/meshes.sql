-- :name save_mesh
INSERT INTO meshes (mesh, is_open, creator, created_at_ns) VALUES (?, ?, ?, ?)
ON CONFLICT (mesh) DO UPDATE SET is_open = excluded.is_open

-- :name save_member
INSERT INTO members (mesh, node, name, role) VALUES (?, ?, ?, ?)
ON CONFLICT (mesh, node) DO UPDATE SET name = excluded.name, role = excluded.role

-- :name remove_member
DELETE FROM members WHERE mesh = ? AND node = ?

-- :name save_access
INSERT INTO access (mesh, node, read, write, lock) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (mesh, node) DO UPDATE SET read = excluded.read, write = excluded.write, lock = excluded.lock

-- :name remove_access
DELETE FROM access WHERE mesh = ? AND node = ?

-- :name save_fence_rule
INSERT INTO fence_rules (mesh, kind, d_prefix, resource) VALUES (?, ?, ?, ?)
ON CONFLICT (mesh, kind, d_prefix) DO UPDATE SET resource = excluded.resource

-- :name remove_fence_rule
DELETE FROM fence_rules WHERE mesh = ? AND kind = ? AND d_prefix = ?

-- :name save_topic
INSERT INTO topics (mesh, topic, creator) VALUES (?, ?, ?)

-- :name remove_topic
DELETE FROM topics WHERE mesh = ? AND topic = ?

-- :name save_subscription
INSERT INTO subscriptions (mesh, node, pattern) VALUES (?, ?, ?)

-- :name remove_subscription
DELETE FROM subscriptions WHERE mesh = ? AND node = ? AND pattern = ?

-- :name save_block
INSERT INTO blocks (mesh, node, blocked) VALUES (?, ?, ?)

-- :name remove_block
DELETE FROM blocks WHERE mesh = ? AND node = ? AND blocked = ?

-- :name save_invite
INSERT INTO invites (invite_id, code_hash, mesh, role, uses_left, expires_at_ns, creator) VALUES (?, ?, ?, ?, ?, ?, ?)

-- :name find_invite
SELECT invite_id, code_hash, mesh, role, uses_left, expires_at_ns, creator FROM invites WHERE code_hash = ?

-- :name take_use
UPDATE invites SET uses_left = uses_left - 1 WHERE invite_id = ?

-- :name note_use
INSERT INTO invite_uses (invite_id, node) VALUES (?, ?)

-- :name has_used
SELECT EXISTS (SELECT 1 FROM invite_uses WHERE invite_id = ? AND node = ?)

-- :name list_invites
SELECT invite_id, code_hash, mesh, role, uses_left, expires_at_ns, creator
FROM invites WHERE mesh = ? AND uses_left > 0 AND expires_at_ns > ? ORDER BY invite_id

-- :name revoke_invite
UPDATE invites SET uses_left = 0, expires_at_ns = 0 WHERE invite_id = ?

-- :name void_invites
UPDATE invites SET uses_left = 0

-- :name meshes
SELECT mesh, is_open, creator, created_at_ns FROM meshes WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~')

-- :name members
SELECT mesh, node, name, role FROM members WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~')

-- :name access
SELECT mesh, node, read, write, lock FROM access WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~')

-- :name topics
SELECT mesh, topic, creator FROM topics WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~')

-- :name subscriptions
SELECT mesh, node, pattern FROM subscriptions WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~') ORDER BY mesh, node, pattern

-- :name blocks
SELECT mesh, node, blocked FROM blocks WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~')

-- :name fence_rules
SELECT mesh, kind, d_prefix, resource FROM fence_rules WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~')
