-- `traceparent` of a message that its sender traces: the span that sent it.

ALTER TABLE inbox ADD COLUMN traceparent TEXT;
