"""Histories of eight clients under every fault at once are linearizable, and the checker would have noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from posthouse.relay.ops.maintenance import replay_store_locks
from posthouse.relay.store.sqlite.meshes_and_locks import all_locks
from posthouse.sqlite.connection import open_reader
from tests.faults import locks_shared_model as shared_model
from tests.faults.audited import audit_findings
from tests.faults.campaign import chance, rounds
from tests.faults.locks_campaign import CLIENTS, LOCK_OF, RESOURCES, Campaign
from tests.faults.locks_client import SHARED
from tests.faults.locks_linear import FOREVER, find_violation
from tests.faults.locks_model import INITIAL, Op, changed, covers, step

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.xdist_group("lock-faults")]


def test_histories_under_stops_kills_delays_and_clock_steps_are_linearizable(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, chance("locks"), faults=rounds(15, 90))
    history = campaign.run()
    assert min(campaign.done.values()) >= 3
    told = [op.answer["token"] for ops in history.values() for op in ops if _is_new_grant(op) and op.answer]
    assert len(told) == len(set(told))
    for resource in RESOURCES:
        ops = history[resource]
        assert len({op.client for op in ops} - {"relay"}) == CLIENTS
        assert len({op.node for op in ops} - {"relay"}) == CLIENTS // 2
        stuck = find_violation(ops, INITIAL, step, covers)
        assert stuck is None, f"{resource} of {len(ops)}: {stuck}"
        assert _is_noticed(ops), resource
        assert _is_other_session_noticed(ops), resource
    assert _is_other_name_noticed(history[RESOURCES[0]])
    assert _is_repeat_noticed(history[RESOURCES[1]])  # the search is longer for a lock with two names
    _check_shared(history[SHARED])
    _check_journal(tmp_path / "relay" / "relay.db", history)
    assert audit_findings(tmp_path / "relay" / "relay.db") == []


def _check_shared(ops: list[Op]) -> None:
    """Check the lock that is shared; a grant beside another one must be found if it had been exclusive."""
    stuck = _find_shared_violation(ops)
    assert stuck is None, f"{SHARED} of {len(ops)}: {stuck}"
    assert any(op.is_shared for op in ops if _is_new_grant(op))  # an exclusive grant needs a moment without readers
    grant, release = min(_shared_pairs(ops), key=lambda pair: pair[1].returned_ns)
    begun = _begun_by(ops, release.returned_ns)
    assert _find_shared_violation(begun) is None
    assert _find_shared_violation([replace(op, is_shared=False) if op is grant else op for op in begun]) is not None


def _find_shared_violation(ops: list[Op]) -> object | None:
    return find_violation(ops, shared_model.INITIAL, shared_model.step, shared_model.covers)


def _shared_pairs(ops: list[Op]) -> Iterator[tuple[Op, Op]]:
    """Yield each shared grant with a later release by another session, whose own grant came before."""
    grants = [op for op in ops if _is_new_grant(op) and op.answer]
    granted_ns = {(op.client, op.answer["token"]): op.returned_ns for op in grants if op.answer}
    for release in filter(_is_release, ops):
        since_ns = granted_ns.get((release.client, release.token), FOREVER)
        for grant in grants:
            is_between = since_ns < grant.called_ns and grant.returned_ns < release.called_ns
            if grant.is_shared and is_between and grant.client != release.client:
                yield grant, release


def _is_new_grant(op: Op) -> bool:
    return op.kind == "acquire" and op.is_certain and not op.code and op.request_id is None


def _is_repeat_noticed(ops: list[Op]) -> bool:
    """Tell whether the checker finds a token that is granted again after a restore lost its first grant."""
    for restore in sorted((op for op in ops if op.kind == "restore"), key=lambda op: op.called_ns):
        lost = [op for op in ops if _is_new_grant(op) and op.returned_ns < restore.called_ns]
        later = [op for op in ops if _is_new_grant(op) and op.called_ns > restore.returned_ns]
        if lost and later:
            first, again = max(lost, key=lambda op: op.returned_ns), min(later, key=lambda op: op.returned_ns)
            return _is_found(ops, again, first)
    raise AssertionError("no restore lies between two grants")


def _is_other_session_noticed(ops: list[Op]) -> bool:
    """Tell whether the checker finds a release by a session that holds nothing, of the node that does."""
    release = _first_release(ops)
    other = next(op.client for op in ops if op.node == release.node and op.client != release.client)
    return _is_wrong_once(ops, release, replace(release, client=other))


def _is_other_name_noticed(ops: list[Op]) -> bool:
    """Tell whether the checker finds a release under the name of the tree above what is held."""
    release = _first_release(ops)
    (other,) = {name for name in LOCK_OF if LOCK_OF[name] == LOCK_OF[release.resource]} - {release.resource}
    return _is_wrong_once(ops, release, replace(release, resource=other))


def _first_release(ops: list[Op]) -> Op:
    """Return the earliest release: the search for what is planted there is the shortest."""
    return min((op for op in ops if _is_release(op)), key=lambda op: op.returned_ns)


def _is_release(op: Op) -> bool:
    return op.kind == "release" and op.is_certain and not op.code


def _is_found(ops: list[Op], wrong: Op, former: Op) -> bool:
    """Tell whether the history up to a grant is found wrong once that grant has the token of a former one."""
    assert former.answer is not None
    return _is_wrong_once(ops, wrong, changed(wrong, token=former.answer["token"]))


def _is_wrong_once(ops: list[Op], wrong: Op, planted: Op) -> bool:
    """Tell whether the history up to an operation is right, and wrong with another one in its place."""
    begun = _begun_by(ops, wrong.returned_ns)
    assert find_violation(begun, INITIAL, step, covers) is None
    return find_violation([planted if op is wrong else op for op in begun], INITIAL, step, covers) is not None


def _begun_by(ops: list[Op], moment_ns: int) -> list[Op]:
    """Return the operations that had begun by a moment; those that had not ended may take effect later."""
    return [op if op.returned_ns <= moment_ns else replace(op, answer=None) for op in ops if op.called_ns <= moment_ns]


def _is_noticed(ops: list[Op]) -> bool:
    """Tell whether the checker finds this history wrong once one grant of it has the token of the grant before."""
    grants = sorted((op for op in ops if _is_new_grant(op)), key=lambda op: op.returned_ns)
    assert len(grants) > 3
    return _is_found(ops, grants[3], grants[2])


def _check_journal(path: Path, history: dict[str, list[Op]]) -> None:
    """Compare what clients were told with what the journal says, and the journal with the table."""
    db = open_reader(path)
    granted: dict[tuple[str, int], str] = {}
    last: dict[str, int] = {}
    for resource, owner, session, token in db.execute(
        "SELECT ref, actor, body ->> '$.session', body ->> '$.token' FROM journal "
        "WHERE type IN ('lock.acquired', 'lock.taken_over') ORDER BY seq"
    ):
        assert token > last.get(resource, 0)
        last[resource] = token
        granted[resource, token] = f"{owner}#{session}"
    for ops in history.values():
        restored_ns = max(op.returned_ns for op in ops if op.kind == "restore")  # it took earlier records away
        for op in ops:
            if op.called_ns > restored_ns and op.kind == "acquire" and op.answer is not None and op.code is None:
                assert granted[op.resource, op.answer["token"]] == op.client
    rows = [(entry.mesh, entry.row) for entry in all_locks(db)]
    replayed = [(mesh, row) for mesh, table in replay_store_locks(db).items() for row in table]
    assert sorted(replayed, key=repr) == sorted(rows, key=repr)
    db.close()
