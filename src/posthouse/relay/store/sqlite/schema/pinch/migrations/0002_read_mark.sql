-- A message that was provably read and not confirmed is not sent again, because its agent may have stored it already.
-- If you change what this column holds: 1. the statements of pinch.sql that read it, 2. docs/explain/pinch.md.

-- the position its delivery had when it was read; a requeue moves the delivery, so that it is sent again
ALTER TABLE pinch_envelopes ADD COLUMN read_position INTEGER;
