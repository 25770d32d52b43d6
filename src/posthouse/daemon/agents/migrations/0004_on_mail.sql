-- Commands that the daemon runs when mail for an agent arrives; their user sets them.

CREATE TABLE on_mail (
    agent TEXT PRIMARY KEY,
    command TEXT NOT NULL
) STRICT;
