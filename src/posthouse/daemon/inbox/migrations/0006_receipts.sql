-- Direct messages whose full text was handed to an agent's program, and whether their senders were told.
-- `handed_at_ns` is the time of the receipt; `is_sent` is 1 once the relay, or this host's outbox, has it.

CREATE TABLE inbox_receipts (
    position INTEGER NOT NULL,
    agent TEXT NOT NULL,
    message_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    handed_at_ns INTEGER NOT NULL,
    is_sent INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (position, agent)
) STRICT, WITHOUT ROWID;

CREATE INDEX inbox_receipts_waiting ON inbox_receipts (position) WHERE is_sent = 0;

CREATE TRIGGER inbox_receipts_deleted AFTER DELETE ON inbox BEGIN
    DELETE FROM inbox_receipts WHERE position = OLD.position;
END;
