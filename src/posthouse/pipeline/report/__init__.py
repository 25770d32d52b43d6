"""The report: one page that shows a history."""
