"""The record types: all that the specification names, declared once, usable without SQLite."""

from __future__ import annotations

import subprocess
import sys

import pytest

from posthouse.journal.daemon_records import RecordType
from posthouse.journal.records import RECORD_TYPES, types_by_name

NAMED = [
    "event.accepted",
    "message.accepted",
    "confirmation.accepted",
    "delivery.sent",
    "delivery.confirmed",
    "delivery.rejected",
    "delivery.expired",
    "delivery.dead",
    "delivery.requeued",
    "delivery.purged",
    "delivery.blocked",
    "lock.run_started",
    "lock.acquired",
    "lock.renewed",
    "lock.released",
    "lock.taken_over",
    "config.changed",
    "refused",
    "bus.published",
    "bus.handled",
    "bus.failed",
    "bus.dead",
    "bus.refused",
    "pinch.accepted",
    "pinch.confirmed",
    "pinch.blocked",
    "journal.snapshot",
]


def test_every_named_type_is_declared() -> None:
    assert set(NAMED) <= RECORD_TYPES.keys()
    for area in ("member", "mesh", "topic", "outbox", "inbox"):
        assert any(name.startswith(f"{area}.") for name in RECORD_TYPES), area


def test_every_type_says_what_its_ref_and_fields_mean() -> None:
    for name, declared in RECORD_TYPES.items():
        assert declared.name == name
        assert declared.version >= 1
        assert declared.ref
        assert all(declared.body.values()), name


def test_records_of_outbox_and_inbox_have_no_bodies() -> None:
    for name, declared in RECORD_TYPES.items():
        if name.startswith(("outbox.", "inbox.")):
            assert not {"body", "message", "content", "event", "meta"} & declared.body.keys(), name


def test_a_type_declared_twice_is_a_defect() -> None:
    with pytest.raises(ValueError, match="twice"):
        types_by_name([RecordType("a.b", "x"), RecordType("a.b", "y")])


@pytest.mark.parametrize("module", ["records", "cursor"])
def test_readers_outside_need_no_sqlite(module: str) -> None:
    program = f"import posthouse.journal.{module}, sys; sys.exit('apsw' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
