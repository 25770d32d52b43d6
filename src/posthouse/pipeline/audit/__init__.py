"""The audit: checks the whole history with rules that depend neither on Spark nor on the code that wrote it."""
