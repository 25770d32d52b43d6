"""The audit: history proved again, with rules that know neither Spark nor the code that wrote it."""

from posthouse.pipeline.audit.finding import CODES, Finding
from posthouse.pipeline.audit.local import ContentRow, Histories, JournalRow, audit_histories

__all__ = ["CODES", "ContentRow", "Finding", "Histories", "JournalRow", "audit_histories"]
