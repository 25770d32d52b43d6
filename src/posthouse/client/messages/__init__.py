"""Messages of a client: making and sending them, the open mailbox, and confirming what came."""

from posthouse.client.messages.compose import Composer, Request
from posthouse.client.messages.delivery import Confirmed, Delivery, Presence, Receipt
from posthouse.client.messages.mailbox import Mailbox, RosterEntry
from posthouse.client.messages.queues import Queues
from posthouse.client.messages.receiving import Receiving
from posthouse.client.messages.sender import NotQueued, Sender, Sent

__all__ = [
    "Composer",
    "Confirmed",
    "Delivery",
    "Mailbox",
    "NotQueued",
    "Presence",
    "Queues",
    "Receipt",
    "Receiving",
    "Request",
    "RosterEntry",
    "Sender",
    "Sent",
]
