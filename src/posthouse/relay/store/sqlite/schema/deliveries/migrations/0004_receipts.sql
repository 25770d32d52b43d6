-- What became of a direct message after its host confirmed it, as that host signed it: the first receipt of a delivery.
CREATE TABLE receipts (
    seq INTEGER NOT NULL,
    mailbox INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('read', 'rejected')),
    -- Unix milliseconds by the clock of the reader's host
    at_ms INTEGER NOT NULL,
    reason TEXT,
    PRIMARY KEY (seq, mailbox)
) STRICT, WITHOUT ROWID;
