-- The place that the store was moved to, if it was; no relay starts on it any more. One row, or none.
CREATE TABLE moved_to (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    -- as shown to people
    target TEXT NOT NULL,
    -- what names the place for certain: the path of a file, or server and database
    place TEXT NOT NULL
) STRICT;
