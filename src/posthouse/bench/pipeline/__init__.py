"""Measuring the pipeline: the source alone, bronze ingest, the audit's signature stage, and how cost grows."""
