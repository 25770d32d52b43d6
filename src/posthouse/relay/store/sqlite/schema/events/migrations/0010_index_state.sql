-- How far event_terms and mesh_usage go: the newest events are added to them in bulk, because the terms of one event lie
-- on four pages and its counter on a fifth. Queries read the events above this seq one by one.
CREATE TABLE index_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    indexed_through INTEGER NOT NULL
) STRICT;

INSERT INTO index_state (id, indexed_through) SELECT 1, coalesce(max(seq), 0) FROM events;
