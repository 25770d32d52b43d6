-- `request` of a message whose sender waits for an answer until `valid_until_ns`: now or queue. A row of such a message
-- that is unread at its deadline is closed like one that was replaced: it is no work any more.

ALTER TABLE inbox ADD COLUMN request TEXT;

CREATE INDEX inbox_by_deadline ON inbox (valid_until_ns) WHERE request IS NOT NULL;
