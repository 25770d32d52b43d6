"""What the stream says beside an OK: that a direct message found the queue of its recipient full."""

from __future__ import annotations

from posthouse.relay.answers import Answer, Declined
from posthouse.relay.deliver.answers import QUEUE_FULL
from posthouse.relay.stream.frame import command_text


def queue_full_text(answer: Answer) -> bytes | None:
    """Return the QUEUE_FULL command that goes with an answer, or None."""
    if not isinstance(answer, Declined) or answer.error.code != QUEUE_FULL:
        return None
    return command_text("QUEUE_FULL", answer.id, answer.error.fields["recipient"], str(answer.error))
