"""The client of a relay, for agents, daemons and the command line.

Each name loads its module at first use; posthouse.lazy says how to add one.
"""

from __future__ import annotations

from posthouse.lazy import attribute_loader

TYPE_CHECKING = False  # see posthouse.lazy
if TYPE_CHECKING:
    from posthouse.client.client import Client
    from posthouse.client.locks.held_lock import Held, Lock
    from posthouse.client.locks.lock_calls import LockCalls
    from posthouse.client.meshes import Access, Member, Meshes
    from posthouse.client.messages.confirmations import ConfirmAnswer, Confirmed, Delivery, Presence
    from posthouse.client.messages.queues import Queues
    from posthouse.client.messages.receipts import Receipt
    from posthouse.client.messages.receiver import Mailbox
    from posthouse.client.messages.sender import Sent
    from posthouse.client.relay_url import Invite, RelayUrl, parse_invite, parse_relay_url
    from posthouse.client.stored_events import Page, Stored
    from posthouse.client.stream.frames import RosterEntry
    from posthouse.client.stream.publisher import Published
    from posthouse.client.stream.subscription import Received, Subscription
    from posthouse.client.transport import ClientOptions
    from posthouse.client.trust.pins import Membership, Memberships, Pins
    from posthouse.client.trust.signing import Signer, sign_event
    from posthouse.model.api import ActiveInvite
    from posthouse.model.lock_api import LockGrant, LockList, LockStatus
    from posthouse.model.message_api import DeliveryState, MessageStates, Queue, QueueRow, Requeued

__all__ = [
    "Access",
    "ActiveInvite",
    "Client",
    "ClientOptions",
    "ConfirmAnswer",
    "Confirmed",
    "Delivery",
    "DeliveryState",
    "Held",
    "Invite",
    "Lock",
    "LockCalls",
    "LockGrant",
    "LockList",
    "LockStatus",
    "Mailbox",
    "Member",
    "Membership",
    "Memberships",
    "Meshes",
    "MessageStates",
    "Page",
    "Pins",
    "Presence",
    "Published",
    "Queue",
    "QueueRow",
    "Queues",
    "Receipt",
    "Received",
    "RelayUrl",
    "Requeued",
    "RosterEntry",
    "Sent",
    "Signer",
    "Stored",
    "Subscription",
    "parse_invite",
    "parse_relay_url",
    "sign_event",
]

#: Module below posthouse -> the public names that live there.
_HOMES = {
    "client.client": ("Client",),
    "client.locks.held_lock": (
        "Held",
        "Lock",
    ),
    "client.locks.lock_calls": ("LockCalls",),
    "client.meshes": (
        "Access",
        "Member",
        "Meshes",
    ),
    "client.messages.confirmations": (
        "ConfirmAnswer",
        "Confirmed",
        "Delivery",
        "Presence",
    ),
    "client.messages.queues": ("Queues",),
    "client.messages.receipts": ("Receipt",),
    "client.messages.receiver": ("Mailbox",),
    "client.messages.sender": ("Sent",),
    "client.relay_url": (
        "Invite",
        "RelayUrl",
        "parse_invite",
        "parse_relay_url",
    ),
    "client.stored_events": (
        "Page",
        "Stored",
    ),
    "client.stream.frames": ("RosterEntry",),
    "client.stream.publisher": ("Published",),
    "client.stream.subscription": (
        "Received",
        "Subscription",
    ),
    "client.transport": ("ClientOptions",),
    "client.trust.pins": (
        "Membership",
        "Memberships",
        "Pins",
    ),
    "client.trust.signing": (
        "Signer",
        "sign_event",
    ),
    "model.api": ("ActiveInvite",),
    "model.lock_api": (
        "LockGrant",
        "LockList",
        "LockStatus",
    ),
    "model.message_api": (
        "DeliveryState",
        "MessageStates",
        "Queue",
        "QueueRow",
        "Requeued",
    ),
}

if not TYPE_CHECKING:  # a type checker that saw this would accept any name
    __getattr__ = attribute_loader(__name__, _HOMES)
