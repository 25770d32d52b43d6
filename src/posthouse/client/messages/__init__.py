"""Messages of a client: making and sending them, the open mailbox, and confirming what came."""
