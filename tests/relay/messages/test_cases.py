"""The table of delivery cases over the relay's own stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.relay.messages.cases import CASES, QUEUE_MAX, Case, case_name
from tests.relay.messages.checked import checked
from tests.relay.messages.wires import StreamWire


@pytest.mark.parametrize("case", CASES, ids=case_name)
async def test_case_holds_over_the_stream(case: Case, tmp_path: Path) -> None:
    async with checked(tmp_path / "relay", queue_max=QUEUE_MAX) as edge:
        await case(StreamWire(edge))
