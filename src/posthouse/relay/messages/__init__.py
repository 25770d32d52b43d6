"""Messages: accept, queues and dead letters, reader sessions, confirmations, presence, and the sweeper."""
