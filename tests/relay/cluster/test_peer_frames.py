"""Names of types in frames between relays: relays of different versions share a store, so the names never change."""

from __future__ import annotations

import msgspec
import pytest

from posthouse.model.lock_api import LockGrant, LockHolder, LockList, LocksBroken, LockStatus, LockSummary
from posthouse.relay.cluster.peer_frames import operation_name, pack_lock_answer, unpack_lock_answer, unpack_operation
from posthouse.relay.wire.lock_operations import Freed, Inspect, LockAnswer, Watch

HOLDER = LockHolder("db", "ed25519:a", 7, 1_000, mode="shared")
ANSWERS: dict[str, LockAnswer] = {
    "Granted": LockGrant("db", "ed25519:a", 7, 5_000, 1, also=("log",)),
    "Freed": Freed("db", "ed25519:a", 7),
    "Broken": LocksBroken("db", (HOLDER,)),
    "LockState": LockStatus("db", True, "ed25519:a", 7, 1_000, (HOLDER,)),
    "LockPage": LockList([LockSummary("main", "db", False, None, 7, 0)], None),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answer_about_a_lock_keeps_its_name_and_its_content(name: str) -> None:
    packed, value = pack_lock_answer(ANSWERS[name])
    assert packed == name
    assert unpack_lock_answer(packed, msgspec.json.decode(msgspec.json.encode(value))) == ANSWERS[name]


@pytest.mark.parametrize(("name", "kind"), [("Inspect", Inspect), ("Watch", Watch)])
def test_operation_keeps_its_name(name: str, kind: type[Inspect]) -> None:
    assert operation_name(kind) == name
    assert type(unpack_operation(name, {"resource": "db"})) is kind
