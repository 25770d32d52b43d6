"""`inbox`: what is unread, newest first, with the beginning of each text. Looking leaves it unread."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from posthouse.client.daemon import InboxItem
from posthouse.mcp.call import ToolCall
from posthouse.mcp.message import PREVIEW_CHARACTERS, ShownMessage, show_item
from posthouse.mcp.tools.spec import ToolSpec

SHOWN = 20  # previews: about 2,000 tokens at most; reading them lets the next ones be seen


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Answer(msgspec.Struct, omit_defaults=True):
    messages: list[ShownMessage]
    #: there is unread mail beyond these
    more: bool | UnsetType = UNSET


async def run(call: ToolCall, given: Arguments) -> Answer:
    return unread(await call.daemon.inbox(unread=True, limit=SHOWN + 1))


def unread(items: Sequence[InboxItem]) -> Answer:
    """Return the newest of what was found, and whether there is more."""
    shown = [show_item(item, PREVIEW_CHARACTERS) for item in items[:SHOWN]]
    return Answer(shown, more=True if len(items) > SHOWN else UNSET)


INBOX = ToolSpec(
    "inbox",
    "List unread messages, newest first; stays unread. Long texts are cut: use read.",
    Arguments,
    Answer,
    run,
    is_read_only=True,
)
