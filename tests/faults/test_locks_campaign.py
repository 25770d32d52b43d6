"""Histories of eight clients under every fault at once are linearizable, and the checker would have noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.relay.ops.maintenance import replay_store_locks
from posthouse.relay.store.sqlite.meshes_and_locks import all_locks
from posthouse.sqlite.connection import open_reader
from tests.faults.audited import audit_findings
from tests.faults.campaign import chance, rounds
from tests.faults.locks_campaign import CLIENTS, RESOURCES, Campaign
from tests.faults.locks_linear import find_violation
from tests.faults.locks_model import INITIAL, Op, changed, covers, step

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.xdist_group("lock-faults")]


def test_histories_under_stops_kills_delays_and_clock_steps_are_linearizable(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, chance("locks"), faults=rounds(9, 90))
    history = campaign.run()
    assert min(campaign.done.values()) >= 3
    for resource in RESOURCES:
        ops = history[resource]
        assert len({op.client for op in ops} - {"relay"}) == CLIENTS
        stuck = find_violation(ops, INITIAL, step, covers)
        assert stuck is None, f"{resource} of {len(ops)}: {stuck}"
        assert _is_noticed(ops), resource
    _check_journal(tmp_path / "relay" / "relay.db", history)
    assert audit_findings(tmp_path / "relay" / "relay.db") == []


def _is_noticed(ops: list[Op]) -> bool:
    """Tell whether the checker finds this history wrong once one grant of it is told to somebody else."""
    grants = [
        op for op in ops if op.kind == "acquire" and op.answer is not None and "token" in op.answer and not op.code
    ]
    assert len(grants) > 5
    wrong = grants[len(grants) // 2]
    assert wrong.answer is not None
    planted = [changed(op, token=wrong.answer["token"] + 1) if op is wrong else op for op in ops]
    return find_violation(planted, INITIAL, step, covers) is not None


def _check_journal(path: Path, history: dict[str, list[Op]]) -> None:
    """Compare what clients were told with what the journal says, and the journal with the table."""
    db = open_reader(path)
    granted: dict[tuple[str, int], str] = {}
    last: dict[str, int] = {}
    for resource, owner, token in db.execute(
        "SELECT ref, actor, body ->> '$.token' FROM journal "
        "WHERE type IN ('lock.acquired', 'lock.taken_over') ORDER BY seq"
    ):
        assert token > last.get(resource, 0)
        last[resource] = token
        granted[resource, token] = owner
    for resource, ops in history.items():
        for op in ops:
            if op.kind == "acquire" and op.answer is not None and op.code is None:
                assert granted[resource, op.answer["token"]] == op.client
    rows = [(entry.mesh, entry.row) for entry in all_locks(db)]
    replayed = [(mesh, row) for mesh, table in replay_store_locks(db).items() for row in table]
    assert sorted(replayed, key=repr) == sorted(rows, key=repr)
    db.close()
