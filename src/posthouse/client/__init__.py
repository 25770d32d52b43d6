"""The client of a relay, for agents, daemons and the command line."""

from posthouse.client.client import Client
from posthouse.client.invite import Invite, parse_invite
from posthouse.client.locks import Held, Lock, LockCalls, LockGrant, LockList, LockStatus
from posthouse.client.memberships import Membership, Memberships
from posthouse.client.meshes import Access, Member, Meshes
from posthouse.client.messages import Confirmed, Delivery, Mailbox, Presence, Receipt, RosterEntry, Sent
from posthouse.client.messages.queues import DeliveryState, MessageStates, Queue, QueueRow, Queues, Requeued
from posthouse.client.options import ClientOptions
from posthouse.client.pins import Pins
from posthouse.client.relay_url import RelayUrl, parse_relay_url
from posthouse.client.signing import Signer, sign_event
from posthouse.client.stored import Page, Stored
from posthouse.client.stream import Published, Received, Subscription

__all__ = [
    "Access",
    "Client",
    "ClientOptions",
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
