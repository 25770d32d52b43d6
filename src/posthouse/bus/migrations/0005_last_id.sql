-- The newest id of an endpoint's mail is found in `mail`: a publish no longer writes the endpoint's row for it.
ALTER TABLE endpoints DROP COLUMN last_id;
