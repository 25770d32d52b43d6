-- Derived: events with a fence tag, by resource and token. The newest of a resource, over all authors, is its pointer.
CREATE TABLE fenced_events (
    event_seq INTEGER PRIMARY KEY,
    mesh TEXT NOT NULL,
    resource TEXT NOT NULL,
    token INTEGER NOT NULL
) STRICT;

CREATE INDEX fenced_events_by_token ON fenced_events (mesh, resource, token);

INSERT INTO fenced_events (event_seq, mesh, resource, token)
SELECT e.seq, e.mesh, t.value ->> 1, CAST(t.value ->> 2 AS INTEGER)
FROM events AS e JOIN json_each(CAST(e.raw AS TEXT), '$.tags') AS t
WHERE e.address IS NOT NULL AND e.raw IS NOT NULL AND t.value ->> 0 = 'fence';
