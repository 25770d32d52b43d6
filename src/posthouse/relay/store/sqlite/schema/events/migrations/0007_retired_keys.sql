-- Keys that may not be used any more: rotated, recovered, replaced by an admin, or revoked. The chain of successors is
-- kept for ever, because names and coordinates of old keys stay in use.
CREATE TABLE retired_keys (
    node TEXT PRIMARY KEY,
    reason TEXT NOT NULL CHECK (reason IN ('rotated', 'recovered', 'replaced', 'revoked')),
    -- NULL: revoked
    successor TEXT UNIQUE,
    actor TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    -- what the key signed from this time on, or the relay accepted after this seq, is marked
    suspect_from_ns INTEGER,
    suspect_after_seq INTEGER,
    -- the signed rotation; NULL: an admin ended the key
    event TEXT,
    -- of a recovered key: the event in which it had named its recovery key
    naming_event TEXT
) STRICT, WITHOUT ROWID;
