-- The message that a row answers, as in the e tag of its event: threads are found by it, and what is still unanswered.
-- A row whose event is gone, or cannot be read, has none.

ALTER TABLE outbox ADD COLUMN reply_to_id TEXT;

UPDATE outbox SET reply_to_id = (
    SELECT tag.value ->> 1 FROM json_each(CAST(event AS TEXT), '$.tags') AS tag WHERE tag.value ->> 0 = 'e' LIMIT 1
)
WHERE json_valid(CAST(event AS TEXT));

CREATE INDEX outbox_by_reply ON outbox (reply_to_id) WHERE reply_to_id IS NOT NULL;
