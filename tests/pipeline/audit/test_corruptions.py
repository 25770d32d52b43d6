"""The rules find every planted corruption and nothing in a history that the product itself has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.pipeline.audit import Histories, audit_histories
from posthouse.pipeline.audit.stores import audit_stores
from tests.pipeline.audit.corruptions import CORRUPTIONS


def test_a_clean_history_has_no_findings(stores: list[Path]) -> None:
    assert audit_stores(*stores) == []


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_planted_corruption_is_found(clean: Histories, name: str) -> None:
    corruption = CORRUPTIONS[name]
    planted = corruption.plant(clean)
    assert planted != clean
    assert corruption.code in {finding.code for finding in audit_histories(planted)}
