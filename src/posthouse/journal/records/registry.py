"""Every type of journal record by name, gathered from the files of the areas. A name is declared once."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from posthouse.journal.records.bus import BUS
from posthouse.journal.records.daemon import DAEMON
from posthouse.journal.records.deliveries import DELIVERIES
from posthouse.journal.records.events import EVENTS
from posthouse.journal.records.locks import LOCKS
from posthouse.journal.records.meshes import MESHES
from posthouse.journal.records.pinch import PINCH
from posthouse.journal.records.shape import RecordType
from posthouse.journal.records.store import STORE


def by_name(declared: Iterable[RecordType]) -> MappingProxyType[str, RecordType]:
    """Return the types by name; refuse a name that is declared twice."""
    types: dict[str, RecordType] = {}
    for record_type in declared:
        if record_type.name in types:
            raise ValueError(f"the record type {record_type.name} is declared twice")
        types[record_type.name] = record_type
    return MappingProxyType(types)


TYPES = by_name((*STORE, *EVENTS, *DELIVERIES, *LOCKS, *MESHES, *BUS, *DAEMON, *PINCH))
