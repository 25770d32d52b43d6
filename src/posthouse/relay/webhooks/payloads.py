"""What a webhook sends: the event or record as JSON, or a line of text for people. Pure functions.

Sealed content stays sealed: JSON has it as it is stored, text only says that a message arrived. The id of a payload is
the same for every attempt and for a replay. If you change the JSON: docs/protocol.md.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from posthouse.journal.digest import Record
from posthouse.model.clock import format_utc
from posthouse.model.event import CONFIRMATION, MESSAGE, RECEIPT, Event
from posthouse.model.node import NODE_SCHEME

_TYPES = {MESSAGE: "message.accepted", CONFIRMATION: "confirmation.accepted", RECEIPT: "receipt.accepted"}
_TEXT_MAX_CHARACTERS = 1_000
_event = msgspec.json.Decoder(Event).decode
#: the member name of a node, None without one
NameOf = Callable[[str], str | None]


class Item(NamedTuple):
    """Something that a webhook sends: an event as JSON, or a journal record."""

    seq: int
    mesh: str
    raw: bytes | None = None
    record: Record | None = None

    def message_id(self, epoch: str) -> str:
        """Return the id by which receivers recognize a repetition."""
        return _event(self.raw).id if self.raw is not None else f"{epoch}-{self.seq}"

    def to_json(self) -> bytes:
        """Return the body of a request."""
        if self.raw is not None:
            event = _event(self.raw)
            kind, at_ns = _TYPES.get(event.kind, "event.accepted"), event.created_at_ns
            data: dict[str, Any] = {"mesh": self.mesh, "seq": self.seq, "event": msgspec.Raw(self.raw)}
        else:
            record = self.record
            assert record is not None
            kind, at_ns = record.type, record.at_ns
            data = {
                "mesh": self.mesh,
                "seq": self.seq,
                "actor": record.actor,
                "ref": record.ref,
                "body": msgspec.Raw(record.body.encode()),
            }
        return msgspec.json.encode({"type": kind, "timestamp": format_utc(at_ns), "data": data})


class Notice(NamedTuple):
    """A text for people."""

    title: str
    text: str


def notice_of(item: Item, name_of: NameOf) -> Notice:
    """Return the notice of an item for a person; text of another member never becomes the title."""
    if item.raw is not None:
        return _event_notice(_event(item.raw), item.mesh, name_of)
    record = item.record
    assert record is not None
    body = record.decoded_body()
    who = "a member" if record.actor is None else _name(record.actor, name_of)
    if record.type == "delivery.dead":
        reader = who if record.actor is not None else "its reader"
        return Notice(
            f"Message not delivered in {item.mesh}", f"{record.ref} did not reach {reader}: {body.get('reason', '')}"
        )
    if record.type == "lock.broken":
        return Notice(f"Lock broken in {item.mesh}", f"{who} broke the lock {record.ref}")
    return Notice(f"{record.type} in {item.mesh}", f"{record.ref or ''} by {who}".strip())


def _event_notice(event: Event, mesh: str, name_of: NameOf) -> Notice:
    who = _name(event.pubkey, name_of)
    what = "Message" if event.kind == MESSAGE else f"Event of kind {event.kind}"
    text = "(sealed: open it with `posthouse inbox`)" if event.value("enc") else event.content
    return Notice(f"{what} from {who} in {mesh}", text[:_TEXT_MAX_CHARACTERS] or "(no text)")


def slack_request(notice: Notice) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request to Slack; control sequences of Slack in the text are escaped."""
    text = html.escape(notice.text, quote=False)
    return msgspec.json.encode({"text": f"*{notice.title}*\n{text}"}), {"Content-Type": "application/json"}


def ntfy_request(notice: Notice) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request to ntfy."""
    return notice.text.encode(), {"Content-Type": "text/plain; charset=utf-8", "Title": notice.title}


def _name(node: str, name_of: NameOf) -> str:
    return name_of(node) or node.removeprefix(f"{NODE_SCHEME}:")[:8]
