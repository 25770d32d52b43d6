-- Content that deletion or retention removed. An erased version keeps its place among those of its coordinate, so that
-- no older one becomes current. The digest of a content that no archive had yet stays, so that an archive which holds
-- it can still prove it.
ALTER TABLE events ADD COLUMN content_digest BLOB;
ALTER TABLE events ADD COLUMN is_erased INTEGER NOT NULL DEFAULT 0;

CREATE INDEX events_by_address ON events (address, created_at_ns) WHERE address IS NOT NULL;

-- Events that their author deleted before they came.
CREATE TABLE blocked_ids (
    id BLOB NOT NULL,
    pubkey BLOB NOT NULL,
    -- the deletion's; the row goes when events of that age are refused anyway
    created_at_ns INTEGER NOT NULL,
    PRIMARY KEY (id, pubkey)
) STRICT, WITHOUT ROWID;

-- Coordinates whose versions up to a time are deleted. Pending: a step of the housekeeping still has to erase some.
CREATE TABLE deleted_addresses (
    address BLOB PRIMARY KEY,
    through_ns INTEGER NOT NULL,
    is_pending INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
