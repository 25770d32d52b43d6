-- :name server
SELECT (SELECT system_identifier FROM pg_control_system())::text,
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
    to_regclass('journal')::oid::bigint

-- :name current_epoch
SELECT epoch, system_identifier, timeline, journal_oid, is_replicated FROM epochs ORDER BY number DESC LIMIT 1

-- :name set_server
UPDATE epochs SET system_identifier = $2, timeline = $3, journal_oid = $4 WHERE epoch = $1

-- :name set_replicated
UPDATE epochs SET is_replicated = true WHERE epoch = $1

-- :name record_time
SELECT at_ns FROM journal WHERE seq = $1
