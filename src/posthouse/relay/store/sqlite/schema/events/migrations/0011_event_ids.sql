-- The index of ids becomes a table, so that it is written in bulk with event_terms: every id lies on a random page, which
-- was a page more for each event. Like event_terms it goes up to index_state; the events above are compared one by one.
-- Ids of events whose content is gone stay in it.
CREATE TABLE event_ids (
    id_prefix BLOB NOT NULL, -- the first eight bytes: half the pages of whole ids; a search compares the whole id too
    seq INTEGER NOT NULL,
    PRIMARY KEY (id_prefix, seq)
) STRICT, WITHOUT ROWID;

INSERT INTO event_ids (id_prefix, seq)
SELECT substr(id, 1, 8), seq FROM events WHERE seq <= (SELECT indexed_through FROM index_state) ORDER BY 1, 2;

DROP INDEX events_by_id;
