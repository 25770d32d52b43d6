"""A defect in one place must not stop the accept path."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from posthouse.model.mesh_limits import MeshLimits
from posthouse.relay.accept import path, verify
from posthouse.relay.accept.commit import CommittedGroup, KindHandlers, commit_group
from posthouse.relay.accept.submission import Answered, Submission
from posthouse.relay.engine import RelayEngine
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.accept_results import Committed
from tests.relay.accept.answers import code, codes
from tests.relay.authors import ALICE, BOB

WAIT_S = 20


async def test_check_that_breaks_is_answered_and_the_next_event_goes_through(
    core: RelayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(verify, "event_row", broken)
        for _ in range(8):  # more than there are threads
            assert code(await asyncio.wait_for(core.accept(ALICE.raw()), WAIT_S)) == "internal"
    assert code(await asyncio.wait_for(core.accept(ALICE.raw()), WAIT_S)) == "201"


async def test_listener_that_breaks_does_not_keep_events_from_the_others(core: RelayEngine) -> None:
    def broken(_events: Sequence[Committed]) -> None:
        raise RuntimeError("a defect")

    published: list[Committed] = []
    core.listen(broken)
    core.listen(published.extend)
    assert codes(await core.accept_many([ALICE.raw(), ALICE.raw()])) == ["201", "201"]
    assert len(published) == 2


async def test_connection_that_breaks_keeps_no_answer_from_another(core: RelayEngine) -> None:
    def broken(_answers: Sequence[Answered]) -> None:
        raise RuntimeError("a defect")

    core.open_submitter(broken).submit([ALICE.raw()])
    assert code(await asyncio.wait_for(core.accept(BOB.raw()), WAIT_S)) == "201"
    assert core.statistics()["accept"]["events_on_the_way"] == 0


async def test_submission_that_trips_over_a_defect_in_the_transaction_fails_alone(
    core: RelayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tripping(
        unit: Unit, submissions: Sequence[Submission], kinds: KindHandlers, limited: Mapping[str, MeshLimits]
    ) -> CommittedGroup:
        if any(b"trips" in job.raw for submission in submissions for job in submission.jobs):
            raise RuntimeError("a defect")
        return commit_group(unit, submissions, kinds, limited)

    monkeypatch.setattr(path, "commit_group", tripping)
    events = [ALICE.raw(content="trips" if number == 7 else "fine") for number in range(20)]
    answers = await asyncio.wait_for(asyncio.gather(*(core.accept(raw) for raw in events)), WAIT_S)
    assert codes(answers) == ["201"] * 7 + ["internal"] + ["201"] * 12
