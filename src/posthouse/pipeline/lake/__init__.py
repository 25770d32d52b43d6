"""The lake: Delta tables in a directory, committed exactly once, and what readers see of them."""

from posthouse.pipeline.lake.lake import Lake

__all__ = ["Lake"]
