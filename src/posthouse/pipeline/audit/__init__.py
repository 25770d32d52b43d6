"""The audit: checks the whole history with rules of its own, which do not depend on Spark."""
