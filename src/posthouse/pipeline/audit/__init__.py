"""The audit: history proved again, with rules that know neither Spark nor the code that wrote it."""
