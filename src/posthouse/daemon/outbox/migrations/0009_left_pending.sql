-- The indexes by id and event have a row from when it first leaves the state 'pending', and keep it: `left_pending` never
-- changes back. With conditions on `status`, settling a row wrote its entries again, on pages all over the index by
-- event; and the outcome of a message that had to wait again was searched in all pending rows.

ALTER TABLE outbox ADD COLUMN left_pending INTEGER NOT NULL DEFAULT 0 CHECK (left_pending IN (0, 1));
UPDATE outbox SET left_pending = 1 WHERE status <> 'pending' OR attempts > 0;

DROP INDEX outbox_by_id;
DROP INDEX outbox_by_event;
CREATE INDEX outbox_by_id ON outbox (id) WHERE left_pending = 1;
CREATE INDEX outbox_by_event ON outbox (event_id) WHERE left_pending = 1;
