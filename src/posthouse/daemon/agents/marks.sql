-- :name position
SELECT position FROM marks WHERE agent = ? AND reader = ? AND mesh = ? AND epoch = ?

-- :name move
INSERT INTO marks (agent, reader, mesh, epoch, position, moved_at_ns)
VALUES (:agent, :reader, :mesh, :epoch, :position, :now_ns)
ON CONFLICT (agent, reader, mesh) DO UPDATE SET
    epoch = excluded.epoch, position = excluded.position, moved_at_ns = excluded.moved_at_ns
WHERE excluded.epoch <> epoch OR excluded.position > position

-- :name rewind_wait
UPDATE marks SET position = min(position, :position)
WHERE agent = :agent AND mesh = :mesh AND epoch = :epoch AND (reader = 'wait' OR reader LIKE 'wait?%')

-- :name forget_oldest
DELETE FROM marks WHERE agent = :agent AND reader LIKE '%?%' AND rowid NOT IN (
    SELECT rowid FROM marks WHERE agent = :agent AND reader LIKE '%?%' ORDER BY moved_at_ns DESC, rowid DESC LIMIT :keep
)
