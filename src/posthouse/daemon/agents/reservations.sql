-- :name columns
SELECT id, agent, path, is_shared, note, made_at_ns, ends_at_ns, ends_boot_ns, boot_id, lock FROM reservations

-- :name insert_row
INSERT INTO reservations (id, agent, path, is_shared, note, made_at_ns, ends_at_ns, ends_boot_ns, boot_id, lock)
VALUES (:id, :agent, :path, :is_shared, :note, :made_at_ns, :ends_at_ns, :ends_boot_ns, :boot_id, :lock)

-- :name delete_row
DELETE FROM reservations WHERE id = ? AND path = ?
