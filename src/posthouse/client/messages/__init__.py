"""Messages of a client: composing and sending, the open mailbox, confirmations and receipts."""
