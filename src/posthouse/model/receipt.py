"""Receipts (events of kind 1002): what became of direct messages after their host confirmed them.

A host signs a receipt when one of its agents was given the full text of messages, or refused them. Reading validates
the tags completely. Times are those of the reader's host, in Unix milliseconds; nothing here compares them with a
clock. The store of deliveries decides if an id is a direct message to this reader.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from posthouse.model.address import is_agent_name
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import RECEIPT, Event, Tag, is_event_id
from posthouse.model.limits import CONFIRMATION_MAX_IDS, SAFE_INTEGER_MAX
from posthouse.model.node import is_node_id

REASON_MAX_CHARS = 500
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,15}")


class ReceiptState(enum.StrEnum):
    """What became of a message."""

    #: the full text was handed to the agent's program
    READ = "read"
    #: the agent accepts no such message
    REJECTED = "rejected"


class ReceiptItem(NamedTuple):
    """What became of one message."""

    id: str
    state: ReceiptState
    #: Unix milliseconds
    at_ms: int
    #: why it was rejected
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The content of a receipt's tags."""

    mesh: str
    #: the host that signed it
    reader: str
    #: the agent of that host; "" for its default inbox
    agent: str
    #: the node whose messages it names
    sender: str
    #: each message once, in the given order
    items: tuple[ReceiptItem, ...]


def receipt_tags(sender: str, agent: str, items: Iterable[ReceiptItem]) -> list[Tag]:
    """Return the tags of a receipt."""
    tags: list[Tag] = [("p", sender)]
    if agent:
        tags.append(("from", agent))
    for item in items:
        reason = () if item.reason is None else (item.reason[:REASON_MAX_CHARS],)
        tags.append(("e", item.id, item.state.value, str(item.at_ms), *reason))
    return tags


def read_receipt(event: Event) -> Receipt:
    """Return the receipt in an event of kind 1002, or raise receipt_malformed."""
    if event.kind != RECEIPT:
        raise _malformed(f"its kind is {event.kind}, not {RECEIPT}")
    senders, agents, named = (_tags(event, name) for name in ("p", "from", "e"))
    if len(senders) != 1 or len(senders[0]) != 2 or not is_node_id(senders[0][1]):
        raise _malformed("it does not have exactly one p tag with a node id")
    if len(agents) > 1 or any(len(tag) != 2 or not is_agent_name(tag[1]) for tag in agents):
        raise _malformed("it has more than one from tag, or one that does not name an agent")
    if not 1 <= len(named) <= CONFIRMATION_MAX_IDS:
        raise _malformed(f"it has {len(named)} e tags, not 1 to {CONFIRMATION_MAX_IDS}")
    items: dict[str, ReceiptItem] = {}
    for item in map(_item, named):
        items.setdefault(item.id, item)
    agent = agents[0][1] if agents else ""
    return Receipt(event.mesh, event.pubkey, agent, senders[0][1], tuple(items.values()))


def _tags(event: Event, name: str) -> list[Tag]:
    return [tag for tag in event.tags if tag[0] == name]


def _item(tag: Tag) -> ReceiptItem:
    if len(tag) not in (4, 5) or not is_event_id(tag[1]):
        raise _malformed("an e tag is not an event id, a state, a time and optionally a reason")
    if tag[2] not in tuple(ReceiptState):
        raise _malformed("a state is neither read nor rejected")
    if _DECIMAL.fullmatch(tag[3]) is None or int(tag[3]) > SAFE_INTEGER_MAX:
        raise _malformed("a time is not a number of milliseconds")
    reason = tag[4] if len(tag) == 5 else None
    if reason is not None and len(reason) > REASON_MAX_CHARS:
        raise _malformed(f"a reason has more than {REASON_MAX_CHARS} characters")
    return ReceiptItem(tag[1], ReceiptState(tag[2]), int(tag[3]), reason)


def _malformed(reason: str) -> PosthouseError:
    return error("receipt_malformed", reason=reason)
