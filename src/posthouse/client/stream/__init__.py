"""The stream of a client: one lasting link, what is published over it, and what is subscribed to."""

from posthouse.client.stream.connection import dial
from posthouse.client.stream.link import Link
from posthouse.client.stream.publisher import Published, Publisher
from posthouse.client.stream.subscription import Received, Subscription
from posthouse.client.stream.subscriptions import Subscriptions

__all__ = ["Link", "Published", "Publisher", "Received", "Subscription", "Subscriptions", "dial"]
