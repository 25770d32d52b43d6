-- :name extent
SELECT pruned_through, body_bytes FROM journal_state

-- :name newest_before
SELECT max(seq) FROM journal WHERE seq > ? AND seq <= ? AND at_ns < ?
