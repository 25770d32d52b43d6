-- What the relays of one store share.

-- The node id of the key that all of them have; one row.
CREATE TABLE store_owner (
    one integer PRIMARY KEY CHECK (one = 1),
    relay text COLLATE "C" NOT NULL
);

-- Relays that have the store open, or had it open when they were lost; each raises its counter twice a second.
CREATE TABLE relays (
    relay_id text COLLATE "C" PRIMARY KEY,
    url text COLLATE "C" NOT NULL,
    beat bigint NOT NULL
) WITH (fillfactor = 10);

-- The relay that decides about locks; one row. Each of its transactions checks the term. boot_ns is that of its last beat.
CREATE TABLE leader (
    one integer PRIMARY KEY CHECK (one = 1),
    term bigint NOT NULL,
    relay_id text COLLATE "C" NOT NULL,
    beat bigint NOT NULL,
    boot_id text COLLATE "C" NOT NULL,
    boot_ns bigint NOT NULL
) WITH (fillfactor = 10);

-- The number of the newest reader session: writes that an older one deferred are dropped.
ALTER TABLE mailboxes ADD COLUMN session bigint NOT NULL DEFAULT 0;

-- Challenges that were answered, until they have expired: a proof must not work on a second relay.
CREATE TABLE spent_challenges (
    challenge bytea PRIMARY KEY,
    until_ms bigint NOT NULL
);

CREATE INDEX spent_challenges_by_time ON spent_challenges (until_ms);
