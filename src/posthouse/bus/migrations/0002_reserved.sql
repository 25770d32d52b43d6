-- When the rules let a message through: [seq of the journal, boot time in ns, 1 if it counted for the rate].
-- Whoever closes the reservation writes it into the record, so that the rules can be run again over history.
ALTER TABLE mail ADD COLUMN reserved TEXT;
