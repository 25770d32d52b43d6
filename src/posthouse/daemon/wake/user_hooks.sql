-- :name cursor
SELECT cursor FROM hook_cursors WHERE hook = ? AND mesh = ? AND store = ?

-- :name put_cursor
INSERT INTO hook_cursors (hook, mesh, store, cursor) VALUES (?, ?, ?, ?)
ON CONFLICT (hook, mesh, store) DO UPDATE SET cursor = excluded.cursor

-- :name delete_others
DELETE FROM hook_cursors WHERE hook NOT IN (SELECT value FROM json_each(?))
