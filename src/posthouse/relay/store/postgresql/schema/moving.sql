-- :name columns
-- Every column of every table, with its place in the primary key (0: none), and whether the server numbers its rows.
SELECT c.relname::text, a.attname::text, format_type(a.atttypid, NULL),
    coalesce(array_position(k.conkey, a.attnum), 0)::bigint, a.attidentity != ''
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_constraint AS k ON k.conrelid = c.oid AND k.contype = 'p'
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
ORDER BY c.relname, a.attnum

-- :name references
SELECT f.relname::text, t.relname::text
FROM pg_constraint AS k JOIN pg_class AS f ON f.oid = k.conrelid JOIN pg_class AS t ON t.oid = k.confrelid
WHERE k.contype = 'f' AND k.connamespace = current_schema()::regnamespace

-- :name place
-- Names server and database for certain, whatever address leads to them.
SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || oid::text FROM pg_database
WHERE datname = current_database()

-- :name has_tables
SELECT to_regclass('epochs') IS NOT NULL, to_regclass('moved_to') IS NOT NULL, EXISTS (
    SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('epochs') AND attname = 'is_replicated')

-- :name moved_to
SELECT target, place FROM moved_to

-- :name set_moved
INSERT INTO moved_to (one, target, place) VALUES (1, $1, $2) ON CONFLICT (one) DO NOTHING

-- :name clear_moved
DELETE FROM moved_to
