-- A request that was sent before from another outbox, or by a command without a daemon, has another event here than at
-- the relay, which answers the id of the first one. Readers know that id: their confirmations, receipts and replies name it.

CREATE INDEX outbox_by_first_id ON outbox (broker_message_id) WHERE broker_message_id <> event_id;
