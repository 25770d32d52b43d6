-- The epoch of the relay that answered last: a relay that was restored from a backup has another one, and gets again
-- what it had answered. `not_queued`: the readers of a topic whose queue had no room, as JSON.
CREATE TABLE relay_epochs (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    epoch TEXT NOT NULL
) STRICT;

ALTER TABLE outbox ADD COLUMN not_queued TEXT;
