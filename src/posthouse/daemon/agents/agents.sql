-- :name columns
SELECT name, program, project, summary, capabilities, status, receipts, created_at_ns, retired_at_ns, retired_reason,
       renamed_to, pid, process_start
FROM agents

-- :name put_agent
INSERT INTO agents (name, program, project, summary, capabilities, status, receipts, created_at_ns, retired_at_ns,
                    retired_reason, renamed_to, pid, process_start)
VALUES (:name, :program, :project, :summary, :capabilities, :status, :receipts, :created_at_ns, :retired_at_ns,
        :retired_reason, :renamed_to, :pid, :process_start)
ON CONFLICT (name) DO UPDATE SET
    program = excluded.program, project = excluded.project, summary = excluded.summary,
    capabilities = excluded.capabilities, status = excluded.status, receipts = excluded.receipts,
    retired_at_ns = excluded.retired_at_ns, retired_reason = excluded.retired_reason,
    renamed_to = excluded.renamed_to, pid = excluded.pid, process_start = excluded.process_start

-- :name tables_with_agents
SELECT listed.name FROM sqlite_schema AS listed JOIN pragma_table_info(listed.name) AS columns
WHERE listed.type = 'table' AND columns.name = 'agent' ORDER BY listed.name

-- :name subscriptions
SELECT agent, pattern FROM subscriptions WHERE mesh = ?

-- :name follow
INSERT OR IGNORE INTO subscriptions (mesh, agent, pattern) VALUES (?, ?, ?)

-- :name unfollow
DELETE FROM subscriptions WHERE mesh = ? AND agent = ? AND pattern = ?
