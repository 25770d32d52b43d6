-- Content that deletion or retention removed. An erased version keeps its place among those of its coordinate, so that
-- no older one becomes current. The digest of a content that no archive had yet stays, so that an archive which holds
-- it can still prove it.
ALTER TABLE events ADD COLUMN content_digest bytea;
ALTER TABLE events ADD COLUMN is_erased boolean NOT NULL DEFAULT false;

CREATE INDEX events_by_address ON events (address, created_at_ns) WHERE address IS NOT NULL;

-- Events that their author deleted before they came.
CREATE TABLE blocked_ids (
    id bytea NOT NULL,
    pubkey bytea NOT NULL,
    -- the deletion's; the row goes when events of that age are refused anyway
    created_at_ns bigint NOT NULL,
    PRIMARY KEY (id, pubkey)
);

-- Coordinates whose versions up to a time are deleted. Pending: a step of the housekeeping still has to erase some.
CREATE TABLE deleted_addresses (
    address bytea PRIMARY KEY,
    through_ns bigint NOT NULL,
    is_pending boolean NOT NULL
);
