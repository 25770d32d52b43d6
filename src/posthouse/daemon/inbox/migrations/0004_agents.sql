-- Every agent of the host has its own inbox: a message is stored once, and inbox_agent has a row for each agent whose
-- inbox it is in. The agent '' is the host's default inbox, which had all mail before. `announced_at_ns` is when the
-- agent was told that the message waits, `read_at_ns` when it was marked as read.

ALTER TABLE inbox ADD COLUMN from_agent TEXT NOT NULL DEFAULT '';
ALTER TABLE inbox ADD COLUMN to_agent TEXT NOT NULL DEFAULT '';

CREATE TABLE inbox_agent (
    agent TEXT NOT NULL,
    position INTEGER NOT NULL,
    announced_at_ns INTEGER,
    read_at_ns INTEGER,
    PRIMARY KEY (agent, position)
) STRICT, WITHOUT ROWID;

INSERT INTO inbox_agent (agent, position, read_at_ns) SELECT '', position, seen_at_ns FROM inbox;

CREATE INDEX inbox_agent_unread ON inbox_agent (agent, position) WHERE read_at_ns IS NULL;
CREATE INDEX inbox_agent_by_position ON inbox_agent (position);

CREATE TRIGGER inbox_deleted AFTER DELETE ON inbox BEGIN
    DELETE FROM inbox_agent WHERE position = OLD.position;
END;

DROP INDEX inbox_unread;
ALTER TABLE inbox DROP COLUMN seen_at_ns;
