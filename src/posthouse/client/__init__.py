"""The client of a relay, for agents, daemons and the command line."""

from posthouse.client.client import Client
from posthouse.client.locks.held_lock import Held, Lock
from posthouse.client.locks.lock_calls import LockCalls
from posthouse.client.meshes import Access, ActiveInvite, Member, Meshes
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
from posthouse.model.api import DeliveryState, LockGrant, LockList, LockStatus, MessageStates, Queue, QueueRow, Requeued

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
