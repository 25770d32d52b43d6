-- :name save_mesh
INSERT INTO meshes (mesh, is_open, creator, created_at_ns, state, approves_keys) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (mesh) DO UPDATE SET is_open = excluded.is_open, state = excluded.state,
    approves_keys = excluded.approves_keys

-- :name save_limits
INSERT INTO mesh_limits (mesh, source, limits) VALUES (?, ?, ?)
ON CONFLICT (mesh, source) DO UPDATE SET limits = excluded.limits

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
SELECT mesh, is_open, creator, created_at_ns, state, approves_keys FROM meshes
WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~')

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

-- :name limits
SELECT mesh, source, limits FROM mesh_limits WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~')

-- :name held_keys
SELECT mesh, node, former, at_ns FROM held_keys WHERE mesh BETWEEN coalesce(?1, '') AND coalesce(?1, '~')

-- :name save_held_key
INSERT INTO held_keys (mesh, node, former, at_ns) VALUES (?, ?, ?, ?)

-- :name remove_held_key
DELETE FROM held_keys WHERE mesh = ? AND node = ?

-- :name clear_mesh
DELETE FROM held_keys WHERE mesh = ?1;
DELETE FROM members WHERE mesh = ?1;
DELETE FROM access WHERE mesh = ?1;
DELETE FROM topics WHERE mesh = ?1;
DELETE FROM subscriptions WHERE mesh = ?1;
DELETE FROM blocks WHERE mesh = ?1;
DELETE FROM fence_rules WHERE mesh = ?1;
DELETE FROM mesh_limits WHERE mesh = ?1;
DELETE FROM invite_uses WHERE invite_id IN (SELECT invite_id FROM invites WHERE mesh = ?1);
DELETE FROM invites WHERE mesh = ?1

-- :name retired_keys
SELECT node, reason, successor, actor, at_ns, suspect_from_ns, suspect_after_seq, event, naming_event
FROM retired_keys ORDER BY at_ns, node

-- :name save_retired_key
INSERT INTO retired_keys (node, reason, successor, actor, at_ns, suspect_from_ns, suspect_after_seq, event, naming_event)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (node) DO UPDATE SET reason = excluded.reason, successor = excluded.successor, actor = excluded.actor,
    at_ns = excluded.at_ns, suspect_from_ns = excluded.suspect_from_ns,
    suspect_after_seq = excluded.suspect_after_seq, event = excluded.event, naming_event = excluded.naming_event

-- :name move_node
UPDATE members SET node = ?2 WHERE node = ?1;
UPDATE held_keys SET node = ?2 WHERE node = ?1;
UPDATE access SET node = ?2 WHERE node = ?1;
UPDATE topics SET creator = ?2 WHERE creator = ?1;
UPDATE subscriptions SET node = ?2 WHERE node = ?1;
UPDATE blocks SET node = ?2 WHERE node = ?1;
UPDATE blocks SET blocked = ?2 WHERE blocked = ?1;
UPDATE invites SET creator = ?2 WHERE creator = ?1;
UPDATE invite_uses SET node = ?2 WHERE node = ?1;
UPDATE mailboxes SET node = ?2 WHERE node = ?1;
UPDATE mentions SET node = ?2 WHERE node = ?1

-- :name mailbox_meshes
SELECT mesh FROM mailboxes WHERE node = ? ORDER BY mesh

-- :name unfinished_deliveries
SELECT m.mesh, lower(hex(d.id)), d.state, s.node, coalesce(r.from_agent, ''), coalesce(r.to_agent, '')
FROM mailboxes AS m JOIN deliveries AS d ON d.mailbox = m.mailbox JOIN mailboxes AS s ON s.mailbox = d.sender
LEFT JOIN message_records AS r ON r.seq = d.seq
WHERE m.node = ? AND (d.closed_at_ns IS NULL OR d.state IN ('rejected', 'dead')) ORDER BY m.mesh, d.seq

-- :name last_seq_before
SELECT coalesce(
    (SELECT seq FROM journal WHERE at_ns < ? ORDER BY seq DESC LIMIT 1),
    (SELECT min(seq) - 1 FROM journal), 0)
