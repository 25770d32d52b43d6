"""The lake: Delta tables in a directory, committed exactly once, and views for readers."""

from posthouse.pipeline.lake.lake import Lake

__all__ = ["Lake"]
