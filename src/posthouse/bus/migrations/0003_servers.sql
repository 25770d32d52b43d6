-- Which processes serve an endpoint. Without a group ('') one process does; processes of one group share it.
CREATE TABLE servers (
    endpoint INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    "group" TEXT NOT NULL,
    PRIMARY KEY (endpoint, instance)
) STRICT, WITHOUT ROWID;
CREATE INDEX servers_by_instance ON servers (instance);
INSERT INTO servers SELECT number, served_by, '' FROM endpoints WHERE served_by IS NOT NULL;
ALTER TABLE endpoints DROP COLUMN served_by;

-- The process of a group that works on the message, and how often the message was delivered again.
ALTER TABLE mail ADD COLUMN claimed_by INTEGER;
ALTER TABLE mail ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
CREATE INDEX mail_claimed ON mail (claimed_by) WHERE claimed_by IS NOT NULL;

-- How many endpoints were ever removed: while it stays the same, a process only loads the endpoints that were added.
ALTER TABLE bus_state ADD COLUMN removals INTEGER NOT NULL DEFAULT 0;
