"""The table of delivery cases over the Pinch wire, but for redelivery: test_redelivery.py has the rules of Pinch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.relay.messages.cases import (
    CASES,
    QUEUE_MAX,
    Case,
    backlog_survives_connections_that_break_in_its_middle,
    block_drops_what_is_queued_and_unblock_brings_nothing_back,
    case_name,
    confirmation_by_somebody_else_counts_for_nothing,
    confirmation_that_is_lost_makes_a_message_come_again,
    was_stored_is_decided_when_a_message_is_first_sent,
)
from tests.relay.pinch.house import pinching, wire

#: cases in which a reader gets a message again that it has read
REDELIVERY = (
    backlog_survives_connections_that_break_in_its_middle,
    block_drops_what_is_queued_and_unblock_brings_nothing_back,
    confirmation_by_somebody_else_counts_for_nothing,
    confirmation_that_is_lost_makes_a_message_come_again,
    was_stored_is_decided_when_a_message_is_first_sent,
)


@pytest.mark.parametrize("case", [case for case in CASES if case not in REDELIVERY], ids=case_name)
async def test_case_holds_over_pinch(case: Case, tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", queues={"queue_max": QUEUE_MAX}) as edge, wire(edge) as pinch:
        await case(pinch)
