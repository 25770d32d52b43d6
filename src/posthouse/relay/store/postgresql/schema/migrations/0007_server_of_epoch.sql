-- The server that an epoch was last written on. The system identifier is that of the data directory, the timeline grows
-- with every promotion of a standby, and a restored dump has another journal table. NULL: not known yet.
ALTER TABLE epochs ADD COLUMN system_identifier text COLLATE "C";
ALTER TABLE epochs ADD COLUMN timeline bigint;
ALTER TABLE epochs ADD COLUMN journal_oid bigint;

-- Whether a synchronous standby has every record of the epoch.
ALTER TABLE epochs ADD COLUMN is_replicated boolean NOT NULL DEFAULT false;
