-- :name received
SELECT message_id, reply_to_id, received_at_ns, sender, sender_name, from_agent, topic, to_agent, body, budget,
       (SELECT read_at_ns FROM inbox_agent WHERE inbox_agent.position = inbox.position AND agent = :agent),
       is_withdrawn, valid_until_ns,
       EXISTS (SELECT 1 FROM inbox_agent WHERE inbox_agent.position = inbox.position AND read_at_ns IS NOT NULL),
       NOT is_failure AND NOT withdraws
FROM inbox
WHERE message_id IN (SELECT value FROM json_each(:ids)) OR reply_to_id IN (SELECT value FROM json_each(:ids))

-- :name sent
SELECT coalesce(broker_message_id, event_id), reply_to_id, enqueued_at_ns, from_agent, destination, to_agent, event, status,
       EXISTS (SELECT 1 FROM outbox AS w
               WHERE w.client_message_id = 'withdraw-' || coalesce(outbox.broker_message_id, outbox.event_id)
                 AND w.from_agent = outbox.from_agent AND w.status <> 'aborted'),
       confirmed_at_ns, read_at_ns, rejected_at_ns, not_queued
FROM outbox
WHERE status <> 'aborted'
  AND position IN (
      SELECT position FROM outbox WHERE left_pending = 1 AND event_id IN (SELECT value FROM json_each(:ids))
      UNION ALL SELECT position FROM outbox INDEXED BY outbox_pending
                WHERE status = 'pending' AND event_id IN (SELECT value FROM json_each(:ids))
      UNION ALL SELECT position FROM outbox WHERE reply_to_id IN (SELECT value FROM json_each(:ids))
      UNION ALL SELECT position FROM outbox
                WHERE broker_message_id <> event_id AND broker_message_id IN (SELECT value FROM json_each(:ids)))

-- :name newest_received
SELECT message_id, received_at_ns FROM inbox WHERE received_at_ns < ? ORDER BY received_at_ns DESC LIMIT ?

-- :name newest_sent
SELECT coalesce(broker_message_id, event_id), enqueued_at_ns FROM outbox WHERE status <> 'aborted' AND enqueued_at_ns < ?
ORDER BY position DESC LIMIT ?

-- :name oldest_sent_read
-- the oldest row that traffic reads; none if it reads all
SELECT enqueued_at_ns FROM outbox ORDER BY position DESC LIMIT 1 OFFSET ?

-- :name oldest_received_read
SELECT received_at_ns FROM inbox ORDER BY received_at_ns DESC LIMIT 1 OFFSET ?

-- :name received_traffic
-- what agents of this host sent to each other is in the outbox, too
SELECT sender, from_agent, coalesce('#' || topic, :node), to_agent, count(*), max(received_at_ns)
FROM (SELECT sender, from_agent, topic, to_agent, received_at_ns FROM inbox
      WHERE received_at_ns >= :since_ns ORDER BY received_at_ns DESC LIMIT :rows)
WHERE sender <> :node
GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC LIMIT :limit

-- :name sent_traffic
-- rows are never deleted and have no index by time: only the newest are read
SELECT from_agent, destination, to_agent, count(*), max(enqueued_at_ns)
FROM (SELECT from_agent, destination, to_agent, enqueued_at_ns, status FROM outbox ORDER BY position DESC LIMIT :rows)
WHERE enqueued_at_ns >= :since_ns AND status <> 'aborted' AND destination <> ''
GROUP BY 1, 2, 3 ORDER BY 4 DESC LIMIT :limit
