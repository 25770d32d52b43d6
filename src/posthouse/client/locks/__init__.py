"""Locks of a relay, from the side of who holds them."""

from posthouse.client.locks.calls import LockCalls
from posthouse.client.locks.held import Held
from posthouse.client.locks.lock import Lock
from posthouse.client.locks.values import LockGrant, LockList, LockStatus, LockSummary

__all__ = ["Held", "Lock", "LockCalls", "LockGrant", "LockList", "LockStatus", "LockSummary"]
