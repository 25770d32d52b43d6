"""What the bus of this host knows of a message that crossed the bridge: its journal, read from the end.

A message that left by the bus has a client_message_id made of its envelope's id; one that came and was published
carries its event id in the payload. Only the newest records are looked at; for an older message the lake of this
host is asked, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.cli.settings import load
from posthouse.cli.trace.steps import Step

if TYPE_CHECKING:
    from posthouse.journal.record import Record

NEWEST = 50_000  # records
_PAGE = 1_000
_MARK = "bus-"
_WORDS = {
    "bus.published": "published to",
    "bus.handled": "handled by",
    "bus.failed": "failed at",
    "bus.dead": "dead at",
}


def bus_steps(event_id: str, client_message_id: str | None, mesh: str) -> list[Step]:
    """Return the steps of a message on the bus, none when it never was there."""
    path = Path(str(load()["bus.dir"].value)).expanduser() / "bus.db"
    if not path.exists():
        return []
    own_id = client_message_id or ""
    wanted: set[str | None] = {own_id.removeprefix(_MARK)} if own_id.startswith(_MARK) else set()
    found = _steps(list(_newest(path)), set(wanted), event_id, mesh)
    if found:
        return found
    from posthouse.cli.trace.memory import remembered_on_bus

    bus_id = next(iter(wanted), None)
    return _steps(remembered_on_bus(event_id, bus_id), wanted, event_id, mesh)


def _steps(records: list[Record], wanted: set[str | None], event_id: str, mesh: str) -> list[Step]:
    found: list[Step] = []
    for record in records:
        if record.type == "bus.published" and _event_id(record, mesh) == event_id:
            wanted.add(record.ref)
    for record in records:
        if record.ref in wanted and record.type in _WORDS:
            found.append(Step("bus", f"{_WORDS[record.type]} {record.decoded_body().get('endpoint')}", record.at_ns))
    return found


def _newest(path: Path) -> Iterator[Record]:
    from posthouse.journal.read import read_after, read_extent
    from posthouse.sqlite.connection import open_reader

    db = open_reader(path)
    try:
        head = read_extent(db).head
        after = max(0, head - NEWEST)
        while records := read_after(db, after, _PAGE):
            yield from records
            after = records[-1].seq
    finally:
        db.close()


def _event_id(record: Record, mesh: str) -> str | None:
    """Return the event id of a message that came from the mesh."""
    if not (record.actor or "").startswith(f"mesh.{mesh}.member."):
        return None
    envelope: Any = record.decoded_body().get("envelope")
    payload = envelope.get("payload") if isinstance(envelope, dict) else None
    data = payload.get("platformData") if isinstance(payload, dict) else None
    found = data.get("messageId") if isinstance(data, dict) else None
    return found if isinstance(found, str) else None
