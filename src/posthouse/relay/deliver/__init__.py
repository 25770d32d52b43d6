"""Messages on their way: accepted once, queued per reader, delivered in order, confirmed by the reader."""
