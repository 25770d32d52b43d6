from __future__ import annotations

from typing import Any

import pytest

from posthouse.model.outbox_rules import AcceptAction, AcceptOutcome, OutboxStatus, OutboxView, decide_accept

MINE = bytes(range(32))
OTHER = bytes(32)
CONFLICT = {"error": "idempotency_key_reused", "daemon_fingerprint_prefix": "0001020304050607"}
SENT = {"broker_message_id": "m-1", "history_id": 7}


def row(status: str, fingerprint: bytes) -> OutboxView:
    return OutboxView(OutboxStatus(status), fingerprint, "m-1", 7, "too old")


def test_an_id_not_seen_before_is_inserted() -> None:
    assert decide_accept(None, MINE) == AcceptOutcome(
        AcceptAction.INSERT, 202, {"status": "queued", "duplicate": False}
    )


@pytest.mark.parametrize(
    ("status", "action", "http", "body"),
    [
        ("pending", AcceptAction.ANSWER, 202, {"status": "queued", "duplicate": False}),
        ("inflight", AcceptAction.ANSWER, 202, {"status": "inflight", "duplicate": False}),
        ("done", AcceptAction.ANSWER, 200, {"status": "done", "duplicate": True, **SENT}),
        (
            "dead",
            AcceptAction.REFUSE,
            409,
            CONFLICT | {"conflict": "outbox_dead_fingerprint_match", "reason": "too old"},
        ),
        ("aborted", AcceptAction.REFUSE, 409, CONFLICT | {"conflict": "outbox_aborted_fingerprint_match"}),
    ],
)
def test_the_same_request_again(status: str, action: AcceptAction, http: int, body: dict[str, Any]) -> None:
    assert decide_accept(row(status, MINE), MINE) == AcceptOutcome(action, http, body)


@pytest.mark.parametrize(
    ("status", "extra"),
    [("pending", {}), ("inflight", {}), ("done", {"broker_message_id": "m-1"}), ("dead", {}), ("aborted", {})],
)
def test_another_request_under_the_same_id(status: str, extra: dict[str, Any]) -> None:
    body = CONFLICT | {"conflict": f"outbox_{status}_fingerprint_mismatch"} | extra
    assert decide_accept(row(status, OTHER), MINE) == AcceptOutcome(AcceptAction.REFUSE, 409, body)


def test_the_table_has_a_cell_for_every_status() -> None:
    for status in OutboxStatus:
        for fingerprint in (MINE, OTHER):
            assert decide_accept(row(status, fingerprint), MINE).action is not AcceptAction.INSERT
