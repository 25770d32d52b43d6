"""What can be said about a message on the command line, for `send` and `topic post`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client.daemon.calls import SendOptions

_GROUP = Group("Message", sort_key=3)
_MANY = Parameter(negative=(), show_default=False)

#: The text of a message.
Text = Annotated[str, Parameter(allow_leading_hyphen=True, help="The text; `-` reads it from stdin.")]


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class MessageFlags:
    """The options of a message."""

    priority: Annotated[
        Literal["now", "next", "low"] | None, Parameter(help="A word to the reader; never reorders.")
    ] = None
    meta: Annotated[str | None, Parameter(help="A JSON object that travels in the clear.")] = None
    reply_to: Annotated[str | None, Parameter(help="Event id of the message it answers.")] = None
    mention: Annotated[tuple[str, ...], _MANY, Parameter(help="A member it speaks of. Several times.")] = ()
    client_message_id: Annotated[
        str | None, Parameter(name="--id", help="Your own id: the same id and message is sent once, however often.")
    ] = None

    def given(self) -> SendOptions:
        """Return the options as the daemon takes them."""
        return {
            "priority": self.priority,
            "meta": self.parsed_meta(),
            "reply_to_id": self.reply_to,
            "mentions": list(self.mention) or None,
            "client_message_id": self.client_message_id,
        }

    def parsed_meta(self) -> dict[str, Any] | None:
        """Return the meta object, or raise a usage error."""
        import msgspec

        if self.meta is None:
            return None
        try:
            return msgspec.json.decode(self.meta, type=dict[str, Any])
        except ValueError as fault:
            raise error("usage", text=f"--meta is not a JSON object: {fault}") from fault


#: The default of every command's `flags`.
NO_FLAGS = MessageFlags()


def read_text(text: str) -> str:
    """Return the text, from stdin if it is `-`."""
    return sys.stdin.read() if text == "-" else text
