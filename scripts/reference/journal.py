"""The page of journal records, from posthouse.journal.records."""

from __future__ import annotations

from posthouse.journal.daemon_records import RecordType
from posthouse.journal.records import RECORD_TYPES
from scripts.reference.markdown import code, table

_INTRO = """\
Bus, relay and daemon append facts to their journal in the same transaction as the change they describe. A record has
`seq` (without gaps, in commit order), `at_ns`, `type`, `mesh`, `actor`, `ref` and a small JSON `body`. A type keeps its
meaning; a change raises its version and keeps old fields readable.
"""


def render() -> str:
    """Return the body of the page."""
    return "\n".join([_INTRO, *(_section(RECORD_TYPES[name]) for name in sorted(RECORD_TYPES))])


def _section(record: RecordType) -> str:
    head = f"## {record.name}\n\nVersion {record.version}. `ref` is {record.ref}.\n"
    if not record.body:
        return head + "\nNo body fields.\n"
    return f"{head}\n{table(('body field', 'meaning'), [(code(k), v) for k, v in record.body.items()])}"
