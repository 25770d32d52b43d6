-- A relay never delivers a host's own topic post back to it, so the daemon gives the post to the other agents of the
-- host once the relay has answered: 'waiting' until that is done. Posts from before have none to give.

ALTER TABLE outbox ADD COLUMN own_post TEXT NOT NULL DEFAULT 'none' CHECK (own_post IN ('none', 'waiting', 'given'));

CREATE INDEX outbox_own_posts ON outbox (history_id) WHERE own_post = 'waiting';
