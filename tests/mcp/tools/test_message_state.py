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


@pytest.mark.parametrize(
    ("known", "recipients", "state"),
    [
        ("queued", None, "queued"),
        ("queued", [], "sent"),
        ("queued", ["confirmed"], "confirmed"),
        ("sent", None, "sent"),
        ("sent", [], "sent"),
        ("sent", ["confirmed", "queued"], "sent"),
        ("sent", ["confirmed", "confirmed"], "confirmed"),
        ("read", ["confirmed"], "read"),
        ("answered", ["confirmed"], "answered"),
        ("aborted", ["confirmed"], "aborted"),
        (None, ["confirmed"], "confirmed"),
        (None, ["queued"], "sent"),
    ],
)
def test_confirmed_needs_the_word_of_every_recipient(
    known: str | None, recipients: list[str] | None, state: str
) -> None:
    found: dict[str, Any] = {} if known is None else {"state": known}
    assert message_state(found, recipients) == state
