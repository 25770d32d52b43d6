"""Locks: leases with fencing tokens, decided in the store's writer; waiters are served in order."""
