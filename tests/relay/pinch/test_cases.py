"""The table of delivery cases over the Pinch wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.relay.messages.cases import CASES, QUEUE_MAX, Case, case_name
from tests.relay.pinch.house import pinching, wire


@pytest.mark.parametrize("case", CASES, ids=case_name)
async def test_case_holds_over_pinch(case: Case, tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", queues={"queue_max": QUEUE_MAX}) as edge, wire(edge) as pinch:
        await case(pinch)
