"""The rules find every planted corruption and nothing in a history that the product itself has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.pipeline.audit.stores import Histories, audit_histories, audit_stores
from tests.pipeline.audit.corruptions import CORRUPTIONS

#: Record types that the clean stores must contain, or a clean result would prove little.
COVERED = {
    *("message.accepted", "event.accepted", "confirmation.accepted", "delivery.requeued"),
    *("lock.acquired", "lock.taken_over", "lock.renewed", "lock.released", "bus.published", "bus.handled", "bus.dead"),
    *("outbox.done", "outbox.aborted", "inbox.received", "inbox.seen", "pinch.accepted", "pinch.confirmed"),
}
#: Corruptions that no other row contradicts.
ALONE = [name for name, each in CORRUPTIONS.items() if each.code.startswith(("fence_", "pinch_"))]


def test_a_clean_history_has_no_findings(stores: list[Path], clean: Histories) -> None:
    assert COVERED - {row.type for row in clean.journal} == set()
    assert audit_stores(*stores) == []


@pytest.mark.parametrize("name", ALONE)
def test_a_careful_forgery_is_one_finding(clean: Histories, name: str) -> None:
    corruption = CORRUPTIONS[name]
    assert [finding.code for finding in audit_histories(corruption.plant(clean))] == [corruption.code]


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name not in ALONE])
def test_planted_corruption_is_found(clean: Histories, name: str) -> None:
    corruption = CORRUPTIONS[name]
    planted = corruption.plant(clean)
    assert planted != clean
    assert corruption.code in {finding.code for finding in audit_histories(planted)}
