-- :name schema
CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL);
CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL);
CREATE TABLE locks (name text PRIMARY KEY, owner text NOT NULL, expires_at timestamptz NOT NULL);

-- :name publish
INSERT INTO log (body) VALUES (%s)

-- :name enqueue
INSERT INTO queue (body) VALUES (%s)

-- :name take
DELETE FROM queue WHERE id IN (SELECT id FROM queue ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING body

-- :name lock
INSERT INTO locks (name, owner, expires_at) VALUES (%s, %s, now() + interval '30 seconds')
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
WHERE locks.expires_at < now()

-- :name unlock
DELETE FROM locks WHERE name = %s AND owner = %s

-- :name settings
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'synchronous_commit', 'wal_sync_method', 'full_page_writes', 'listen_addresses')
ORDER BY name
