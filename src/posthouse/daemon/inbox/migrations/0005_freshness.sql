-- How fresh a message is. `sent_at_ns` is the sender's time, NULL for mail from before. `replaces` is the message id of
-- an earlier message of the same sender that this one supersedes or, with `withdraws`, withdraws; `replaced_by` is the
-- inbox id of the message that did so. An unread row of a replaced message is closed: it counts as read and has `replaced_at_ns`.
-- `read_by` is the process that read the message, `read_before_ns` when a predecessor of the agent's process had read
-- it without an answer.

ALTER TABLE inbox ADD COLUMN sent_at_ns INTEGER;
ALTER TABLE inbox ADD COLUMN valid_until_ns INTEGER;
ALTER TABLE inbox ADD COLUMN replaces TEXT;
ALTER TABLE inbox ADD COLUMN withdraws INTEGER NOT NULL DEFAULT 0;
ALTER TABLE inbox ADD COLUMN replaced_by TEXT;
ALTER TABLE inbox ADD COLUMN is_withdrawn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE inbox ADD COLUMN is_failure INTEGER NOT NULL DEFAULT 0;
ALTER TABLE inbox_agent ADD COLUMN replaced_at_ns INTEGER;
ALTER TABLE inbox_agent ADD COLUMN read_by TEXT;
ALTER TABLE inbox_agent ADD COLUMN read_before_ns INTEGER;

CREATE INDEX inbox_by_replaced ON inbox (replaces) WHERE replaces IS NOT NULL;
CREATE INDEX inbox_by_reply ON inbox (reply_to_id) WHERE reply_to_id IS NOT NULL;
CREATE INDEX inbox_agent_by_reader ON inbox_agent (agent, read_by) WHERE read_by IS NOT NULL;
