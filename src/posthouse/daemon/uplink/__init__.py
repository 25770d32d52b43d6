"""The way of a daemon to its relay: the connection, sending from the outbox, receiving into the inbox."""

from posthouse.daemon.uplink.drain import Drain
from posthouse.daemon.uplink.features import Offer, bounded_max_age_h, read_offer
from posthouse.daemon.uplink.uplink import Uplink

__all__ = ["Drain", "Offer", "Uplink", "bounded_max_age_h", "read_offer"]
