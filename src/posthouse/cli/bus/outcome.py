"""What a publish came to, for people and as an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.console import Output
from posthouse.model.codes.spec import Exit

if TYPE_CHECKING:
    from posthouse.bus.results import PublishResult


def answer_publish(output: Output, result: PublishResult) -> int:
    """Show the result; the exit code is 1 when no mailbox took the message."""
    import msgspec

    lines = [f"{result.message_id}  stored in {_mailboxes(result.delivered_to)}"]
    lines += [f"refused by {entry.subject}: {entry.text}" for entry in result.rejected]
    if not result.delivered_to and not result.rejected:
        lines.append("nobody is registered for it: it is a dead letter in unrouted/")
    output.answer(msgspec.to_builtins(result), "\n".join(lines))
    return Exit.OK if result.delivered_to else Exit.REFUSED


def _mailboxes(count: int) -> str:
    return "1 mailbox" if count == 1 else f"{count} mailboxes"
