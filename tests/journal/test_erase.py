"""Erasing what was written from the records of a bus: the text is gone, the record and its digest are not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from posthouse import Bus
from posthouse.journal.digest import Record, record_digest
from posthouse.journal.erase import ErasureRequest, erase_records
from posthouse.journal.read import read_after
from posthouse.journal.records import without_content
from posthouse.journal.verify import verify_store
from posthouse.model.clock import FakeClock
from posthouse.sqlite.connection import open_reader

TEXT = "the quick brown secret"


def records(path: Path) -> list[Record]:
    db = open_reader(path)
    try:
        return read_after(db, 0, 10_000)
    finally:
        db.close()


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """A bus on which alice and bob wrote to one endpoint, and a handler quoted one of alice's messages."""

    async def handle(envelope: object) -> None:
        raise RuntimeError(f"cannot read {envelope}")

    async with Bus(tmp_path / "bus", clock=FakeClock()) as bus:
        await bus.register_endpoint("desk.one", owner="tests")
        for sender in ("alice", "bob"):
            for number in range(3):
                await bus.publish("desk.one", {"text": f"{TEXT} of {sender}", "number": number}, from_=sender)
    return tmp_path / "bus" / "bus.db"


def test_what_one_sender_wrote_goes_and_the_records_stay_provable(store: Path) -> None:
    before = records(store)
    request = ErasureRequest(node="alice", reason="erased: request 4711")
    assert erase_records(store, request, "ed25519:admin", FakeClock(), is_dry_run=True) == 3
    assert records(store) == before
    assert erase_records(store, request, "ed25519:admin", FakeClock()) == 3
    *after, erasure = records(store)
    assert [record._replace(body="") for record in after] == [record._replace(body="") for record in before]
    assert sum(TEXT in record.body for record in after) == 3
    for path in store.parent.glob("bus.db*"):
        assert f"{TEXT} of alice".encode() not in path.read_bytes(), path
    written = [record for record in before if record.actor == "alice" and record.type == "bus.published"]
    assert (erasure.type, erasure.actor, erasure.ref) == ("content.erased", "ed25519:admin", "journal")
    assert msgspec.json.decode(erasure.body) == {
        "seqs": [record.seq for record in written],
        "ids": [record.ref for record in written],
        "digests": [record_digest(record).hex() for record in written],
        "reason": "erased: request 4711",
    }
    assert verify_store(store) == []
    assert erase_records(store, request, "ed25519:admin", FakeClock()) == 0


@pytest.mark.parametrize(
    ("request_", "erased"),
    [
        (ErasureRequest(node="alice", before_ns=0), 0),
        (ErasureRequest(mesh="main"), 0),
        (ErasureRequest(before_ns=2**62), 6),
        (ErasureRequest(id="no such message"), 0),
    ],
)
def test_content_goes_only_if_it_meets_every_criterion(store: Path, request_: ErasureRequest, erased: int) -> None:
    assert erase_records(store, request_, "tests", FakeClock()) == erased
    assert sum(TEXT in record.body for record in records(store)) == 6 - erased


def test_content_is_what_its_type_declares() -> None:
    published = '{"envelope":{"id":"1","payload":{"a":"b"}},"endpoint":"e"}'
    assert without_content("bus.published", published) == '{"envelope":{"id":"1","payload":null},"endpoint":"e"}'
    failed = '{"reason":"ValueError: secret","endpoint":"e"}'
    assert without_content("bus.failed", failed) == '{"reason":"","endpoint":"e"}'
    for body in ('{"envelope":{"payload":null}}', '{"envelope":7}', "{}"):
        assert without_content("bus.published", body) == body
    assert without_content("message.accepted", '{"reason":"x"}') == '{"reason":"x"}'
