-- The full-text index of the inbox. It holds words and positions, no text, and is filled behind the inbox: storing a
-- message costs nothing here, and a search first indexes what is missing. It can be dropped and filled again.

CREATE VIRTUAL TABLE inbox_search USING fts5 (
    body, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2'
);

CREATE TABLE inbox_search_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    indexed_through INTEGER NOT NULL
) STRICT;

INSERT INTO inbox_search_state VALUES (1, 0);
