-- Retired keys are part of what an audience depends on.
CREATE TRIGGER retired_keys_inserted AFTER INSERT ON retired_keys BEGIN
    UPDATE audience_versions SET version = random();
END;
CREATE TRIGGER retired_keys_updated AFTER UPDATE ON retired_keys BEGIN
    UPDATE audience_versions SET version = random();
END;
