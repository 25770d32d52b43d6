"""The archive: what of a store's history the lake holds, read back from its files; and asking a relay to prune that."""

from posthouse.pipeline.archive.lookup import Lookup
from posthouse.pipeline.archive.prune import Archived, archive

__all__ = ["Archived", "Lookup", "archive"]
