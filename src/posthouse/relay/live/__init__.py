"""Live subscriptions: the index of their filters and the fan-out of committed events."""

from posthouse.relay.live.fanout import Delivery, Live, Reader

__all__ = ["Delivery", "Live", "Reader"]
