-- The place that the store was moved to, if it was; no relay starts on it any more. One row, or none.
CREATE TABLE moved_to (
    one integer PRIMARY KEY CHECK (one = 1),
    -- as shown to people
    target text COLLATE "C" NOT NULL,
    -- what names the place for certain: the path of a file, or server and database
    place text COLLATE "C" NOT NULL
);
