-- :name newest_before
SELECT max(seq) FROM journal WHERE seq > ? AND seq <= ? AND at_ns < ?
