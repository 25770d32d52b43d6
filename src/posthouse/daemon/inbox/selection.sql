-- :name newest_position
SELECT coalesce(max(position), 0) FROM inbox

-- :name found
inbox_agent.position IN (SELECT rowid FROM inbox_search WHERE inbox_search MATCH ?)

-- :name listed
message_id IN (SELECT value FROM json_each(?))

-- :name unindexed
SELECT position, body FROM inbox
WHERE position > (SELECT indexed_through FROM inbox_search_state) ORDER BY position LIMIT ?

-- :name index_row
INSERT INTO inbox_search (rowid, body) VALUES (?, ?)

-- :name set_indexed_through
UPDATE inbox_search_state SET indexed_through = ?

-- :name unindex_row
DELETE FROM inbox_search WHERE rowid = ?
