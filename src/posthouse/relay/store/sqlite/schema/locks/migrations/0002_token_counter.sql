-- One counter of fencing tokens per store: every grant takes the next number, so tokens of all locks compare.
-- A store of an older posthouse counted per lock; its counter begins above every token that it still knows.

CREATE TABLE token_counter (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    token INTEGER NOT NULL CHECK (token >= 0)
) STRICT;

INSERT INTO token_counter
SELECT 1, max(
    coalesce((SELECT max(token) FROM locks), 0),
    coalesce((SELECT max(token) FROM lock_requests), 0),
    coalesce((SELECT max(token) FROM fence_writes), 0)
);
