-- The changes of a store for its followers. One row says how far the recording has come; without it nothing is recorded.
-- In the copy of a follower the same row says how far the copy has come.
CREATE TABLE change_stream (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    stream TEXT NOT NULL,
    -- the recording holds only for this epoch, this schema and this head: other programs that write end it
    epoch TEXT NOT NULL,
    schema TEXT NOT NULL,
    head INTEGER NOT NULL,
    number INTEGER NOT NULL,
    digest BLOB NOT NULL
) STRICT;

-- One row for each transaction, the newest ones only. A digest covers the digest before it and the changeset.
CREATE TABLE changesets (
    number INTEGER PRIMARY KEY,
    at_ns INTEGER NOT NULL,
    head INTEGER NOT NULL,
    digest BLOB NOT NULL,
    changeset BLOB NOT NULL
) STRICT;
