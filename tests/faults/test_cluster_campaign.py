"""Locks of three relays on one database are linearizable under kills and stops, and the checker would have noticed."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.faults import locks_shared_model as shared_model
from tests.faults.campaign import chance, rounds
from tests.faults.cluster_campaign import ClusterCampaign
from tests.faults.locks_campaign import RESOURCES
from tests.faults.locks_client import SHARED
from tests.faults.locks_linear import find_violation
from tests.faults.locks_model import INITIAL, Op, changed, covers, step
from tests.relay.both_stores import server_findings

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.xdist_group("cluster")]


def test_histories_under_kills_stops_and_clock_steps_are_linearizable(tmp_path: Path, database: str) -> None:
    campaign = ClusterCampaign(tmp_path, database, chance("cluster"), faults=rounds(4, 40))
    history = campaign.run()
    assert len(campaign.events) >= 1, "the leader never changed"
    told = [op.answer["token"] for ops in history.values() for op in ops if _is_new_grant(op) and op.answer]
    assert len(told) > 10
    assert len(told) == len(set(told))
    for resource in RESOURCES:
        stuck = find_violation(history[resource], INITIAL, step, covers)
        assert stuck is None, f"{resource} of {len(history[resource])}: {stuck}"
    assert find_violation(history[SHARED], shared_model.INITIAL, shared_model.step, shared_model.covers) is None
    assert _is_repeat_noticed(history[RESOURCES[1]])
    assert server_findings(database) == []
    with psycopg.connect(database) as connection:
        tokens = [token for (token,) in connection.execute(_GRANTS)]
    assert tokens == sorted(set(tokens))


_GRANTS = (
    "SELECT (body::json ->> 'token')::bigint FROM journal WHERE type IN ('lock.acquired', 'lock.taken_over')"
    " ORDER BY seq"
)


def _is_new_grant(op: Op) -> bool:
    return op.kind == "acquire" and op.is_certain and not op.code and op.request_id is None


def _is_repeat_noticed(ops: list[Op]) -> bool:
    """Tell whether the checker finds this history wrong once a grant has the token of the grant before."""
    grants = sorted((op for op in ops if _is_new_grant(op)), key=lambda op: op.returned_ns)
    former, again = grants[1], grants[2]
    assert former.answer is not None
    planted = changed(again, token=former.answer["token"])
    begun = [planted if op is again else op for op in ops if op.called_ns <= again.returned_ns]
    return find_violation(begun, INITIAL, step, covers) is not None
