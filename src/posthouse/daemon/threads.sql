-- :name received
SELECT message_id, reply_to_id, received_at_ns, sender, sender_name, from_agent, topic, to_agent, body, budget,
       (SELECT read_at_ns FROM inbox_agent WHERE inbox_agent.position = inbox.position AND agent = :agent),
       is_withdrawn, valid_until_ns,
       EXISTS (SELECT 1 FROM inbox_agent WHERE inbox_agent.position = inbox.position AND read_at_ns IS NOT NULL)
FROM inbox
WHERE message_id IN (SELECT value FROM json_each(:ids)) OR reply_to_id IN (SELECT value FROM json_each(:ids))

-- :name sent
SELECT coalesce(broker_message_id, event_id), reply_to_id, enqueued_at_ns, from_agent, destination, to_agent, event, status,
       confirmed_at_ns, read_at_ns, rejected_at_ns, not_queued
FROM outbox
WHERE status <> 'aborted'
  AND (event_id IN (SELECT value FROM json_each(:ids)) OR reply_to_id IN (SELECT value FROM json_each(:ids))
       OR (broker_message_id <> event_id AND broker_message_id IN (SELECT value FROM json_each(:ids))))

-- :name newest_received
SELECT message_id, received_at_ns FROM inbox WHERE received_at_ns < ? ORDER BY received_at_ns DESC LIMIT ?

-- :name newest_sent
SELECT coalesce(broker_message_id, event_id), enqueued_at_ns FROM outbox WHERE status <> 'aborted' AND enqueued_at_ns < ?
ORDER BY position DESC LIMIT ?

-- :name received_traffic
-- what agents of this host sent to each other is in the outbox, too
SELECT sender, from_agent, coalesce('#' || topic, :node), to_agent, count(*), max(received_at_ns) FROM inbox
WHERE received_at_ns >= :since_ns AND sender <> :node
GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC LIMIT :limit

-- :name sent_traffic
-- rows are never deleted and have no index by time: only the newest are looked at
SELECT from_agent, destination, to_agent, count(*), max(enqueued_at_ns)
FROM (SELECT * FROM outbox ORDER BY position DESC LIMIT :looked_at)
WHERE enqueued_at_ns >= :since_ns AND status <> 'aborted' AND destination <> ''
GROUP BY 1, 2, 3 ORDER BY 4 DESC LIMIT :limit
