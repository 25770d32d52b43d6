"""What clients may say on a stream: one file per verb, listed in the table."""
