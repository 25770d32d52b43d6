-- Where each hook of the user continues in each journal: `cursor` is the text of posthouse.journal.cursor.
-- `mesh` is empty for the journal of the home; `store` is inbox, outbox or home.

CREATE TABLE hook_cursors (
    hook TEXT NOT NULL,
    mesh TEXT NOT NULL,
    store TEXT NOT NULL,
    cursor TEXT NOT NULL,
    PRIMARY KEY (hook, mesh, store)
) STRICT, WITHOUT ROWID;
