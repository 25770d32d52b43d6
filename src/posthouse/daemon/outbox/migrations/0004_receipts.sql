-- What became of a direct message at its recipient: its host confirmed it, its agent's program was given the text, or
-- the agent refused it. Times of receipts are those of the reader's host.

ALTER TABLE outbox ADD COLUMN confirmed_at_ns INTEGER;
ALTER TABLE outbox ADD COLUMN read_at_ns INTEGER;
ALTER TABLE outbox ADD COLUMN rejected_at_ns INTEGER;
ALTER TABLE outbox ADD COLUMN reject_reason TEXT;
