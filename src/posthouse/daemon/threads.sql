-- :name received
SELECT message_id, reply_to_id, received_at_ns, sender, sender_name, from_agent, topic, to_agent, body, budget,
       (SELECT read_at_ns FROM inbox_agent WHERE inbox_agent.position = inbox.position AND agent = :agent),
       is_withdrawn, valid_until_ns
FROM inbox
WHERE message_id IN (SELECT value FROM json_each(:ids)) OR reply_to_id IN (SELECT value FROM json_each(:ids))

-- :name sent
SELECT event_id, reply_to_id, enqueued_at_ns, from_agent, destination, to_agent, event, status
FROM outbox
WHERE status <> 'aborted'
  AND (event_id IN (SELECT value FROM json_each(:ids)) OR reply_to_id IN (SELECT value FROM json_each(:ids)))
