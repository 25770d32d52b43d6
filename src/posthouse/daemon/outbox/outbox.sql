-- Three indexes have only some rows, and SQLite uses them only for a statement that says so in the same words: the one
-- by status those with `status <> 'pending'`, even beside `status = 'done'`; those by id and event the rows with
-- `left_pending = 1`. A statement with which a row may leave the state 'pending' for the first time sets `left_pending`;
-- the others do not, because setting it again writes the index entries again.

-- :name by_client_id
SELECT status, request_fingerprint, broker_message_id, history_id, last_error, id, event_id
FROM outbox WHERE client_message_id = ? AND from_agent = ?

-- :name insert_row
INSERT INTO outbox (id, client_message_id, request_fingerprint, event_id, event, destination, from_agent, to_agent,
                    reply_to_id, enqueued_at_ns, status, payload_bytes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?)

-- :name read_state
-- the few newest rows are not counted in the row of counters, see count_new
SELECT pending + new_rows, inflight, bytes + new_bytes
FROM outbox_state, (SELECT count(*) AS new_rows, coalesce(sum(payload_bytes), 0) AS new_bytes FROM outbox
                    WHERE position > (SELECT counted_through FROM outbox_state))

-- :name read_older_state
-- of an outbox whose counters count every row
SELECT pending, inflight, bytes FROM outbox_state

-- :name add_state
UPDATE outbox_state SET pending = pending + ?, inflight = inflight + ?, bytes = bytes + ?

-- :name count_new
UPDATE outbox_state SET (pending, bytes, counted_through) = (
    SELECT outbox_state.pending + count(*), outbox_state.bytes + coalesce(sum(payload_bytes), 0),
           coalesce(max(position), outbox_state.counted_through)
    FROM outbox WHERE position > outbox_state.counted_through)

-- :name recount
UPDATE outbox_state SET (pending, inflight, bytes, counted_through) = (
    SELECT coalesce(sum(status = 'pending'), 0), coalesce(sum(status = 'inflight'), 0),
           coalesce(sum(length(event)), 0), coalesce(max(position), 0) FROM outbox)

-- :name open_destinations
SELECT destination FROM outbox WHERE status = 'pending'
UNION SELECT destination FROM outbox WHERE status = 'inflight' AND status <> 'pending'

-- :name oldest_pending
SELECT enqueued_at_ns FROM outbox
WHERE position = (SELECT min(position) FROM outbox INDEXED BY outbox_pending WHERE status = 'pending')

-- :name claimable
SELECT position, id, client_message_id, event, enqueued_at_ns, attempts, last_error, from_agent
FROM outbox WHERE destination = ? AND status = 'pending' ORDER BY position LIMIT ?

-- :name mark_inflight
UPDATE outbox SET status = 'inflight', attempts = attempts + 1, next_attempt_at_ns = NULL, left_pending = 1
WHERE position = ?

-- :name mark_done
UPDATE outbox SET status = 'done', delivered_at_ns = ?, broker_message_id = ?, history_id = ?, last_error = NULL,
       own_post = CASE WHEN own_post = 'given' THEN 'given' WHEN destination GLOB '#*' THEN 'waiting' ELSE 'none' END,
       not_queued = coalesce(?, not_queued)
WHERE position = ? AND status = 'inflight'

-- :name mark_accepted
UPDATE outbox SET status = 'done', delivered_at_ns = ?, broker_message_id = ?, history_id = ?, last_error = NULL,
       own_post = CASE WHEN destination GLOB '#*' THEN 'waiting' ELSE 'none' END, next_attempt_at_ns = NULL,
       left_pending = 1
WHERE position = ?

-- :name own_posts
SELECT position, history_id, event, coalesce(broker_message_id, event_id) FROM outbox
WHERE own_post = 'waiting' AND history_id < ? AND event IS NOT NULL ORDER BY history_id LIMIT ?

-- :name rename_agent
-- an id that both names have used stays with each
UPDATE OR IGNORE outbox SET from_agent = ? WHERE from_agent = ?

-- :name mark_given
UPDATE outbox SET own_post = 'given' WHERE position = ?

-- :name position_of_id
SELECT position FROM outbox WHERE id = :id AND left_pending = 1
UNION ALL SELECT position FROM outbox INDEXED BY outbox_pending WHERE id = :id AND status = 'pending'

-- :name position_of_message
SELECT position FROM outbox WHERE event_id = :message_id AND left_pending = 1
UNION ALL SELECT position FROM outbox WHERE broker_message_id = :message_id AND broker_message_id <> event_id
UNION ALL SELECT position FROM outbox INDEXED BY outbox_pending WHERE event_id = :message_id AND status = 'pending'
LIMIT 1

-- :name position_of_sent
-- only a message that was sent can have an outcome, so the rows that never were are not searched
SELECT position FROM outbox WHERE event_id = :message_id AND left_pending = 1
UNION ALL SELECT position FROM outbox WHERE broker_message_id = :message_id AND broker_message_id <> event_id
LIMIT 1

-- :name positions_of_short_id
SELECT position FROM outbox WHERE event_id BETWEEN :first AND :last AND left_pending = 1
UNION SELECT position FROM outbox
      WHERE broker_message_id BETWEEN :first AND :last AND broker_message_id <> event_id
UNION SELECT position FROM outbox INDEXED BY outbox_pending
      WHERE event_id BETWEEN :first AND :last AND status = 'pending'
LIMIT 2

-- :name id_of_position
SELECT id FROM outbox WHERE position = ?

-- :name without_outcome
SELECT coalesce(broker_message_id, event_id) FROM outbox
WHERE status = 'done' AND status <> 'pending' AND history_id IS NOT NULL AND destination NOT GLOB '#*'
  AND read_at_ns IS NULL AND rejected_at_ns IS NULL
ORDER BY position DESC LIMIT ?

-- :name note_confirmed
UPDATE outbox SET confirmed_at_ns = :at_ns
WHERE position = :position AND confirmed_at_ns IS NULL AND destination NOT GLOB '#*'

-- :name note_read
UPDATE outbox SET read_at_ns = :at_ns, confirmed_at_ns = coalesce(confirmed_at_ns, :at_ns)
WHERE position = :position AND read_at_ns IS NULL AND rejected_at_ns IS NULL

-- :name note_rejected
UPDATE outbox SET rejected_at_ns = :at_ns, reject_reason = :reason
WHERE position = :position AND read_at_ns IS NULL AND rejected_at_ns IS NULL

-- :name mark_deferred
UPDATE outbox SET status = 'pending', next_attempt_at_ns = ?, last_error = ?
WHERE position = ? AND status = 'inflight'

-- :name mark_dead
UPDATE outbox SET status = 'dead', next_attempt_at_ns = NULL, last_error = ?, left_pending = 1 WHERE position = ?

-- :name reopen_inflight
UPDATE outbox SET status = 'pending', next_attempt_at_ns = NULL WHERE status = 'inflight' AND status <> 'pending'

-- :name expired
SELECT position, id, client_message_id FROM outbox INDEXED BY outbox_pending
WHERE status = 'pending' AND enqueued_at_ns < ? ORDER BY position LIMIT ?

-- :name mark_aborted
UPDATE outbox SET status = 'aborted', aborted_at_ns = ?, aborted_by = ?, superseded_by = ?, next_attempt_at_ns = NULL,
       left_pending = 1
WHERE position = ?

-- :name relay_epoch
SELECT epoch FROM relay_epochs

-- :name set_relay_epoch
INSERT INTO relay_epochs (id, epoch) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch

-- :name answered
SELECT position, id, destination FROM outbox
WHERE status = 'done' AND status <> 'pending' AND event IS NOT NULL AND history_id IS NOT NULL AND enqueued_at_ns >= ?
ORDER BY position

-- :name reopen
UPDATE outbox SET status = 'pending', next_attempt_at_ns = NULL WHERE position = ?

-- :name strippable
SELECT position, length(event) FROM outbox
WHERE status = 'done' AND status <> 'pending' AND event IS NOT NULL AND delivered_at_ns < ?
ORDER BY position LIMIT ?

-- :name strip
UPDATE outbox SET event = NULL, destination = '' WHERE position = ?

-- :name columns
SELECT position, id, client_message_id, status, attempts, enqueued_at_ns, next_attempt_at_ns, delivered_at_ns,
       broker_message_id, history_id, last_error, aborted_at_ns, aborted_by, superseded_by, payload_bytes,
       destination, event_id, from_agent, to_agent, confirmed_at_ns, read_at_ns, rejected_at_ns, reject_reason,
       not_queued
FROM outbox

-- :name newest_position
SELECT coalesce(max(position), 0) FROM outbox

-- :name event_of
SELECT event FROM outbox WHERE position = ?

-- :name count_all
SELECT coalesce(sum(status = 'pending'), 0), coalesce(sum(status = 'inflight'), 0),
       coalesce(sum(length(event)), 0) FROM outbox

-- :name everything
SELECT * FROM outbox NOT INDEXED

-- :name insert_everything
INSERT OR IGNORE INTO outbox (position, id, client_message_id, request_fingerprint, event_id, event, destination,
                              enqueued_at_ns, attempts, status, next_attempt_at_ns, last_error, delivered_at_ns,
                              broker_message_id, history_id, aborted_at_ns, aborted_by, superseded_by, payload_bytes,
                              from_agent, to_agent, own_post, confirmed_at_ns, read_at_ns, rejected_at_ns,
                              reject_reason, reply_to_id, not_queued, left_pending)
VALUES (:position, :id, :client_message_id, :request_fingerprint, :event_id, :event, :destination, :enqueued_at_ns,
        :attempts, :status, :next_attempt_at_ns, :last_error, :delivered_at_ns, :broker_message_id, :history_id,
        :aborted_at_ns, :aborted_by, :superseded_by, :payload_bytes, :from_agent, :to_agent, :own_post,
        :confirmed_at_ns, :read_at_ns, :rejected_at_ns, :reject_reason, :reply_to_id,
        :not_queued, :left_pending)
