-- Messages of a topic that a reader's full queue had no room for, until the reader has read them from the topic's
-- history: the first and the last of them. Others between them may have been queued.
CREATE TABLE gaps (
    mailbox INTEGER NOT NULL,
    topic TEXT NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    PRIMARY KEY (mailbox, topic)
) STRICT, WITHOUT ROWID;
