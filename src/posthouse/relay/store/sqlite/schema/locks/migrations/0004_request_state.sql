-- How far lock_requests goes: the newest request ids are added to it in bulk, because each of them changes two pages. Those
-- of the records above this seq are read from the journal.
CREATE TABLE lock_requests_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    saved_through INTEGER NOT NULL
) STRICT;

INSERT INTO lock_requests_state
SELECT 1, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0);
