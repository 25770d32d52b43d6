"""`history`: what was said on a topic or with a member, newest first, from the relay."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from posthouse.mcp.call import ToolCall
from posthouse.mcp.message import HISTORY_CHARACTERS, ShownMessage, show_past
from posthouse.mcp.tools.spec import ToolSpec

SHOWN = 20
TOPIC_MARK = "#"


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    #: a member, or #topic
    of: str
    #: where the last answer ended
    before: str | UnsetType = UNSET


class Answer(msgspec.Struct, omit_defaults=True):
    messages: list[ShownMessage]
    #: to go on with, unless this is all
    before: str | UnsetType = UNSET


async def run(call: ToolCall, given: Arguments) -> Answer:
    is_topic = given.of.startswith(TOPIC_MARK)
    page = await call.daemon.history(
        topic=given.of if is_topic else None,
        member=None if is_topic else given.of,
        before=None if given.before is UNSET else given.before,
        limit=SHOWN,
    )
    shown = [show_past(message, HISTORY_CHARACTERS) for message in page["messages"]]
    return Answer(shown, str(page["before"]) if page["before"] is not None else UNSET)


HISTORY = ToolSpec(
    "history",
    "Past messages with a member or of a #topic, newest first.",
    Arguments,
    Answer,
    run,
    is_read_only=True,
)
