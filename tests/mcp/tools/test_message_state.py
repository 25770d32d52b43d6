from __future__ import annotations

from typing import Any

import pytest

from posthouse.mcp.tools.sending import message_state, outbox_state


@pytest.mark.parametrize(
    ("status", "state"),
    [("pending", "queued"), ("queued", "queued"), ("inflight", "queued"), ("done", "sent"), ("dead", "dead"),
     ("aborted", "dead")],
)  # fmt: skip
def test_a_row_alone_claims_no_more_than_this_host_knows(status: str, state: str) -> None:
    assert outbox_state(status) == state
    assert message_state({"status": status}, None) == state


@pytest.mark.parametrize(
    ("status", "recipients", "state"),
    [
        ("done", [], "sent"),
        ("done", ["queued"], "sent"),
        ("done", ["sent"], "sent"),
        ("done", ["confirmed"], "confirmed"),
        ("done", ["confirmed", "queued"], "sent"),
        ("done", ["confirmed", "dead"], "sent"),
        ("done", ["rejected", "expired", "purged", "dead"], "dead"),
        ("inflight", ["confirmed"], "confirmed"),
        ("inflight", [], "sent"),
        ("aborted", ["confirmed"], "dead"),
        (None, ["confirmed"], "confirmed"),
        (None, ["queued"], "sent"),
    ],
)
def test_confirmed_needs_the_word_of_every_recipient(status: str | None, recipients: list[str], state: str) -> None:
    row: dict[str, Any] | None = None if status is None else {"status": status}
    assert message_state(row, recipients) == state
