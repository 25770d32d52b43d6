"""A message as an agent is shown it: facts that the daemon vouches for, and apart from them what somebody else wrote.

Everything under `untrusted` is data of the sender that `origin` names, whose signature the daemon has checked; nothing
of it is ever put anywhere else in an answer. The text stays inside a JSON string, so it cannot end its field.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from posthouse.client.daemon import InboxItem

PREVIEW_CHARACTERS = 280
HISTORY_CHARACTERS = 2_000


class Untrusted(msgspec.Struct, omit_defaults=True):
    """What somebody else wrote."""

    #: node id of who signed it
    origin: str
    text: str | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = UNSET
    #: there is more of the text
    truncated: bool | UnsetType = UNSET
    #: why there is no text
    undecryptable: str | UnsetType = UNSET


class ShownMessage(msgspec.Struct, omit_defaults=True):
    """One message."""

    #: message id: for reply_to, read and status
    id: str
    at: str
    untrusted: Untrusted
    #: name of the sender in the mesh
    from_: str | UnsetType = msgspec.field(name="from", default=UNSET)
    topic: str | UnsetType = UNSET
    reply_to: str | UnsetType = UNSET


def show_item(item: InboxItem, most: int | None) -> ShownMessage:
    """Return mail of the inbox, its text cut to `most` characters."""
    return ShownMessage(
        id=item.message_id,
        at=item.received_at,
        untrusted=_untrusted(item.sender, item.body, item.meta, item.undecryptable, most),
        from_=item.sender_name or UNSET,
        topic=_topic(item.topic),
        reply_to=item.reply_to_id or UNSET,
    )


def show_past(message: dict[str, Any], most: int | None) -> ShownMessage:
    """Return a message of the history, its text cut to `most` characters."""
    return ShownMessage(
        id=message["message_id"],
        at=message["sent_at"],
        untrusted=_untrusted(
            message["sender"], message["body"], message.get("meta"), message.get("undecryptable"), most
        ),
        from_=message.get("sender_name") or UNSET,
        topic=_topic(message.get("topic")),
        reply_to=message.get("reply_to_id") or UNSET,
    )


def _untrusted(
    origin: str, text: str | None, meta: dict[str, Any] | None, undecryptable: str | None, most: int | None
) -> Untrusted:
    is_cut = text is not None and most is not None and len(text) > most
    return Untrusted(
        origin=origin,
        text=UNSET if text is None else text[:most],
        meta=meta or UNSET,
        truncated=True if is_cut else UNSET,
        undecryptable=undecryptable or UNSET,
    )


def _topic(name: str | None) -> str | UnsetType:
    return UNSET if name is None else f"#{name}"
