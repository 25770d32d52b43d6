-- The dead letters in failed/, so that their number and size are known without reading files. Endpoint 0 is unrouted/.
-- kind: 0 accepted work, which is never dropped; 1 a refused message; 2 a refused message without its payload.
CREATE TABLE letters (
    endpoint INTEGER NOT NULL,
    id TEXT NOT NULL,
    kind INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (endpoint, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX letters_refused ON letters (endpoint, id) WHERE kind IN (1, 2);
CREATE INDEX letters_untrimmed ON letters (endpoint, id) WHERE kind = 1;

-- The sums over `letters`, which the triggers keep.
CREATE TABLE letter_counts (
    endpoint INTEGER PRIMARY KEY,
    refused INTEGER NOT NULL DEFAULT 0,
    refused_bytes INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    failed_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TRIGGER letter_added AFTER INSERT ON letters BEGIN
    INSERT OR IGNORE INTO letter_counts (endpoint) VALUES (new.endpoint);
    UPDATE letter_counts SET
        refused = refused + (new.kind > 0), refused_bytes = refused_bytes + new.bytes * (new.kind > 0),
        failed = failed + (new.kind = 0), failed_bytes = failed_bytes + new.bytes * (new.kind = 0)
    WHERE endpoint = new.endpoint;
END;

CREATE TRIGGER letter_removed AFTER DELETE ON letters BEGIN
    UPDATE letter_counts SET
        refused = refused - (old.kind > 0), refused_bytes = refused_bytes - old.bytes * (old.kind > 0),
        failed = failed - (old.kind = 0), failed_bytes = failed_bytes - old.bytes * (old.kind = 0)
    WHERE endpoint = old.endpoint;
END;

-- 0: letters that were written before this table existed are not counted yet.
ALTER TABLE bus_state ADD COLUMN has_letters INTEGER NOT NULL DEFAULT 0;
