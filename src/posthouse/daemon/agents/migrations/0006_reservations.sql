-- Paths that agents have reserved, each with everything below it. The rows of one request share an id and are granted
-- and released together. The end is kept as boot time of one boot, which no set clock moves, and as wall time for
-- people and for the next boot.
-- If you change this table: 1. a new migration, 2. reservations.py, 3. docs/how-to/reserve.md.

CREATE TABLE reservations (
    id TEXT NOT NULL,
    -- '' is a person
    agent TEXT NOT NULL,
    -- absolute, without links
    path TEXT NOT NULL,
    is_shared INTEGER NOT NULL,
    note TEXT NOT NULL,
    made_at_ns INTEGER NOT NULL,
    ends_at_ns INTEGER NOT NULL,
    ends_boot_ns INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    -- name of the relay's lock that the daemon holds for this path, if it was reserved for a repository
    lock TEXT,
    PRIMARY KEY (id, path)
) STRICT, WITHOUT ROWID;
