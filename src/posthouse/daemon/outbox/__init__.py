"""The outbox of a daemon."""

from posthouse.daemon.outbox.outbox import FILE_NAME, Outbox
from posthouse.daemon.outbox.rows import Claimed, Depth, NewRow, OutboxRow

__all__ = ["FILE_NAME", "Claimed", "Depth", "NewRow", "Outbox", "OutboxRow"]
