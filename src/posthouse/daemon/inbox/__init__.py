"""The inbox of a daemon."""

from posthouse.daemon.inbox.inbox import FILE_NAME, Inbox
from posthouse.daemon.inbox.rows import InboxItem, NewItem, Wanted

__all__ = ["FILE_NAME", "Inbox", "InboxItem", "NewItem", "Wanted"]
