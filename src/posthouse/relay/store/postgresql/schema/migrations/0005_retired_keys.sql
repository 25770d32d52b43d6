-- Keys that may not be used any more: rotated, recovered, replaced by an admin, or revoked. The chain of successors is
-- kept for ever, because names and coordinates of old keys stay in use.
CREATE TABLE retired_keys (
    node text COLLATE "C" PRIMARY KEY,
    reason text COLLATE "C" NOT NULL CHECK (reason IN ('rotated', 'recovered', 'replaced', 'revoked')),
    -- NULL: revoked
    successor text COLLATE "C" UNIQUE,
    actor text COLLATE "C" NOT NULL,
    at_ns bigint NOT NULL,
    -- what the key signed from this time on, or the relay accepted after this seq, is marked
    suspect_from_ns bigint,
    suspect_after_seq bigint,
    -- the signed rotation; NULL: an admin ended the key
    event text,
    -- of a recovered key: the event in which it had named its recovery key
    naming_event text
);

-- Retired keys are part of what an audience depends on.
CREATE FUNCTION change_all_audiences() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE audience_versions SET version = (random() * 9e18)::bigint;
    RETURN NULL;
END $$;

CREATE TRIGGER audience_changed AFTER INSERT OR UPDATE ON retired_keys
FOR EACH STATEMENT EXECUTE FUNCTION change_all_audiences();
