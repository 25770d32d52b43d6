"""The shapes of all journal records; import from here. Needs no SQLite, so that readers outside can use it."""

from posthouse.journal.records.registry import TYPES
from posthouse.journal.records.shape import RecordType

__all__ = ["TYPES", "RecordType"]
