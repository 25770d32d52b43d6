-- `claim` names the announcement that a row is part of, until the agent's program has heard of it. Then it is NULL
-- again. A claim that no caller holds, as after a kill of the daemon, counts for nothing: its rows are announced again.

ALTER TABLE inbox_agent ADD COLUMN claim TEXT;

CREATE INDEX inbox_agent_claimed ON inbox_agent (claim) WHERE claim IS NOT NULL;
