"""The report: one HTML page with charts of a history."""
