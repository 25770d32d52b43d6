"""How far a message has come, in four words that promise nothing more than what is known.

    queued      on the disk of this host; the relay has not acknowledged it
    sent        the relay has it; not every recipient's daemon has stored it
    confirmed   the daemon of every recipient has stored it; whether anybody read it is not known
    dead        given up: it will not arrive

Pure: rows in, a word out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

State = Literal["queued", "sent", "confirmed", "dead"]

_WAITING = frozenset({"pending", "queued", "inflight"})
_GIVEN_UP = frozenset({"dead", "aborted"})
_LOST = frozenset({"rejected", "dead", "expired", "purged"})


def outbox_state(status: str) -> State:
    """Return the state that an outbox row alone tells."""
    if status in _WAITING:
        return "queued"
    return "dead" if status in _GIVEN_UP else "sent"


def message_state(row: Mapping[str, Any] | None, recipients: Sequence[str] | None) -> State:
    """Return the state by the outbox row, if it was sent from here, and the relay's states per recipient, if known."""
    if row is not None and (own := outbox_state(row["status"])) != "sent":
        # the relay's word goes before an answer that was lost, or is not written yet
        return own if recipients is None or own == "dead" else _together(recipients)
    return _together(recipients or ())


def _together(recipients: Sequence[str]) -> State:
    if not recipients:
        return "sent"
    if all(state == "confirmed" for state in recipients):
        return "confirmed"
    return "dead" if all(state in _LOST for state in recipients) else "sent"
