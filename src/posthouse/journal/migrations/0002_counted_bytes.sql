-- body_bytes counts the records up to this seq; housekeeping counts the newer ones before it decides by size.
-- A commit that kept the count exact would write one more page.
ALTER TABLE journal_state ADD COLUMN counted_through INTEGER NOT NULL DEFAULT 0;
UPDATE journal_state SET counted_through = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0);
