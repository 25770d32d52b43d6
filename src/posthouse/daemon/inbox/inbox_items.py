"""Messages of the inbox as values: in the form that is stored, and in the form that a reader sees.

The names in `to_api` are a contract of the local API. If you change one: 1. DaemonClient, 2. docs/reference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.clock import format_utc
from posthouse.model.limits import SECOND_NS


class NewItem(NamedTuple):
    """A message to be stored."""

    id: str
    client_message_id: str
    message_id: str
    mesh: str
    topic: str | None
    sender: str
    sender_name: str | None
    #: None if it could not be decrypted
    body: str | None
    #: canonical JSON, "" if absent
    meta: str
    reply_to_id: str | None
    priority: str
    #: text of the budget tag
    budget: str | None
    #: error code, if it could not be decrypted
    undecryptable: str | None
    #: the sender's agent, "" for its host
    from_agent: str = DEFAULT_INBOX
    #: the agent that a direct message is for, "" for the default inbox
    to_agent: str = DEFAULT_INBOX
    #: agents of this host whose inboxes get it
    agents: tuple[str, ...] = (DEFAULT_INBOX,)
    #: by the sender's clock
    sent_at_ns: int | None = None
    #: span that sent it
    traceparent: str | None = None


class InboxItem(NamedTuple):
    """A stored message in the inbox of one agent."""

    position: int
    id: str
    client_message_id: str
    message_id: str
    mesh: str
    topic: str | None
    sender: str
    sender_name: str | None
    body: str | None
    meta: str
    received_at_ns: int
    reply_to_id: str | None
    seen_at_ns: int | None
    priority: str
    budget: str | None
    undecryptable: str | None
    #: inbox id of a different message of this sender with the same client_message_id
    conflicts_with: str | None
    from_agent: str
    to_agent: str
    #: whose inbox it is in
    agent: str
    sent_at_ns: int | None = None
    #: the sender's limit: after it, the message is stale
    valid_until_ns: int | None = None
    #: 1: it only reports a failure and wakes no agent
    is_failure: int = 0
    #: inbox id of the later message that supersedes or withdraws it
    replaced_by: str | None = None
    is_withdrawn: int = 0
    #: set if the agent had not read it in time
    replaced_at_ns: int | None = None
    #: when an earlier process of the agent had read it without an answer
    read_before_ns: int | None = None
    #: later messages of the same sender in this inbox; counted up to 100
    newer_from_sender: int = 0
    #: now or queue if the sender waits for an answer until `valid_until_ns`
    request: str | None = None
    #: span of OpenTelemetry that sent it; an agent that traces its work continues there
    traceparent: str | None = None

    @property
    def wakes(self) -> bool:
        """True if the message may wake an agent: reports of failures and mail that cannot be opened never do."""
        return not self.is_failure and self.undecryptable is None

    def is_stale(self, now_ns: int) -> bool:
        """Return True once the time has passed until which the message is valid, according to its sender."""
        return self.valid_until_ns is not None and now_ns >= self.valid_until_ns

    def is_withheld(self, now_ns: int) -> bool:
        """Return True if the text is shown only to a reader that confirms: it was not read before it became stale."""
        if self.valid_until_ns is None or not self.is_stale(now_ns):
            return False
        return self.seen_at_ns is None or self.seen_at_ns >= self.valid_until_ns

    def age_s(self, now_ns: int) -> float:
        """Return the age of the message: since it was sent, or received if the sender's clock is ahead."""
        since_ns = self.received_at_ns if self.sent_at_ns is None else min(self.sent_at_ns, self.received_at_ns)
        return max(0, now_ns - since_ns) / SECOND_NS

    def to_api(self, now_ns: int, *, is_confirmed: bool = False) -> dict[str, Any]:
        """Return the message as the local API shows it at a time; `is_confirmed` shows the text of a stale one.

        Without a body, `undecryptable`, `is_withdrawn` or `is_stale` says why.
        """
        is_hidden = self.is_withdrawn and self.replaced_at_ns is not None
        is_hidden = is_hidden or (self.is_withheld(now_ns) and not is_confirmed)
        return {
            "id": self.id,
            "client_message_id": self.client_message_id,
            "message_id": self.message_id,
            "mesh": self.mesh,
            "topic": self.topic,
            "sender": self.sender,
            "sender_name": self.sender_name,
            "body": None if is_hidden else self.body,
            "meta": msgspec.json.decode(self.meta) if self.meta else None,
            "received_at": format_utc(self.received_at_ns),
            "reply_to_id": self.reply_to_id,
            "seen_at": None if self.seen_at_ns is None or self.replaced_at_ns else format_utc(self.seen_at_ns),
            "priority": self.priority,
            "undecryptable": self.undecryptable,
            "conflicts_with": self.conflicts_with,
            "from_agent": self.from_agent,
            "to_agent": self.to_agent,
            "agent": self.agent,
            "sent_at": _format_time(self.sent_at_ns),
            "age_s": round(self.age_s(now_ns), 3),
            "newer_from_sender": self.newer_from_sender,
            "valid_until": _format_time(self.valid_until_ns),
            "is_stale": self.is_stale(now_ns),
            "is_failure": bool(self.is_failure),
            "replaced_by": self.replaced_by,
            "is_withdrawn": bool(self.is_withdrawn),
            "read_before": _format_time(self.read_before_ns),
            "request": self.request,
            "traceparent": self.traceparent,
        }


def _format_time(at_ns: int | None) -> str | None:
    return None if at_ns is None else format_utc(at_ns)
